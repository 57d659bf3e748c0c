"""The rules: which records are errors at which level, and whose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.check.findings import (
    Finding,
    expected_ids,
    find,
    reported_ids,
    tell,
    worst,
)
from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.settings import Level

PYTEST, CHILD = 10, 11


def touch(pid: int = PYTEST, *, poisoned: bool = False, **fields: object) -> dict[str, Any]:
    return {"k": "touch", "id": "t", "pid": pid, "owner": "10", "poisoned": poisoned, **fields}


def fork(pid: int = PYTEST, verdict: str = "guarded") -> dict[str, Any]:
    return {"k": "fork", "id": "f", "pid": pid, "owner": "10", "verdict": verdict}


LEVELS = (Level.POISON, Level.FORK, Level.TOUCH)
Errors = dict[Level, type[Exception] | None]
NOWHERE: Errors = dict.fromkeys(LEVELS)
EVERYWHERE_POISONED: Errors = dict.fromkeys(LEVELS, PoisonedTouchError)
TABLE: dict[str, tuple[dict[str, Any], Errors]] = {
    "touch in the pytest process": (touch(), {**NOWHERE, Level.TOUCH: CudaTouchError}),
    "touch in a child": (touch(CHILD), NOWHERE),
    "poisoned touch in a child": (touch(CHILD, poisoned=True), EVERYWHERE_POISONED),
    "poisoned touch in a forked pytest process": (touch(poisoned=True), EVERYWHERE_POISONED),
    "refused fork in the pytest process": (fork(), dict.fromkeys(LEVELS, CudaForkError)),
    "refused fork in a child": (fork(CHILD), dict.fromkeys(LEVELS, CudaForkError)),
    "fork past the guard": (fork(verdict="unguarded"), dict.fromkeys(LEVELS, CudaForkError)),
    "allowed fork in a child": (fork(CHILD, "allowed"), NOWHERE),
    "watched fork in a child": (fork(CHILD, "watched"), NOWHERE),
    "fork of unknown state": (fork(CHILD, "unknown"), NOWHERE),
    "start of a child": ({"k": "child", "id": "c", "pid": CHILD, "owner": "10"}, NOWHERE),
    "start of a process": ({"k": "process", "id": "p", "pid": CHILD, "owner": "10"}, NOWHERE),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TABLE)
def test_a_record_is_an_error_at_its_levels_and_no_other(name: str, level: Level) -> None:
    record, errors = TABLE[name]
    expected = errors[level]
    assert [found.error for found in find([record], level)] == ([expected] if expected else [])


def test_a_refusal_that_was_caught_by_its_name_is_no_error() -> None:
    caught = {"k": "caught", "fork": "f", "by_name": False}
    assert expected_ids([fork(), caught]) == set()
    expected = expected_ids([fork(), caught, {**caught, "by_name": True}, caught])
    assert expected == {"f"}
    assert not find([fork(), fork(CHILD)], Level.FORK, expected=expected)


def test_an_isolated_process_may_touch_and_not_poison() -> None:
    records = [touch(), touch(CHILD, poisoned=True)]
    found = find(records, Level.TOUCH, isolated=True)
    assert [one.error for one in found] == [PoisonedTouchError]


@settings(deadline=None)
@given(st.lists(st.sampled_from([record for record, _ in TABLE.values()])))
def test_a_stricter_level_finds_all_that_a_looser_one_finds(records: list[dict[str, Any]]) -> None:
    found = [[(f.record, f.error) for f in find(records, level)] for level in LEVELS]
    assert all(one in found[1] for one in found[0])
    assert all(one in found[2] for one in found[1])
    assert [f.record for f in find(records, Level.TOUCH)] == [
        record for record in records if find([record], Level.TOUCH)
    ]


@pytest.mark.parametrize(
    ("test", "nodeid"),
    [
        ("", ""),
        ("test_a.py::test_b (call)", "test_a.py::test_b"),
        ("test_a.py::test_b[x (y)] (setup)", "test_a.py::test_b[x (y)]"),
    ],
)
def test_a_finding_knows_its_test(test: str, nodeid: str) -> None:
    assert Finding(touch(test=test), CudaTouchError).nodeid == nodeid


def test_what_was_reported_is_collected_from_all_processes() -> None:
    records = [
        touch(),
        {"k": "reported", "pid": PYTEST, "ids": ["a", "b"]},
        {"k": "reported", "pid": CHILD, "ids": ["c"]},
        {"k": "reported", "pid": CHILD},
    ]
    assert reported_ids(records) == {"a", "b", "c"}


ENGINE = [["/src/engine.py", 3, "probe", 3]]


def one(error: Any, *, line: int = 3, **fields: object) -> Finding:
    """Return a finding with a stack and a time."""
    stack = [["/src/engine.py", line, "probe", 3]]
    record = {**touch(CHILD), "t": line, "entry": "cuInit", "stack": stack, **fields}
    return Finding(record, error)


def test_a_place_is_one_line() -> None:
    assert one(CudaTouchError).place == "/src/engine.py:3: in probe"
    refused = Finding({**fork(CHILD), "stack": ENGINE}, CudaForkError)
    assert refused.place == "fork refused at /src/engine.py:3 in probe"
    assert refused.id == "f"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CudaTouchError, "CUDA was initialized in the pytest process"),
        (PoisonedTouchError, "was forked from an initialized process and touched CUDA"),
        (CudaForkError, "fork refused: this process"),
    ],
)
def test_each_error_has_its_story(error: Any, words: str) -> None:
    found = one(error)
    assert words in found.story(History([found.record]), simulated=False)


def test_a_child_that_fails_is_told_before_a_touch() -> None:
    harmless, harmful = one(CudaTouchError), one(PoisonedTouchError)
    assert worst([harmless, harmful]) is harmful
    assert worst([harmless]) is harmless


def test_the_worst_is_told_in_full_and_the_rest_by_place() -> None:
    findings = [one(CudaTouchError, line=line) for line in range(1, 12)]
    text = tell(findings, History(found.record for found in findings), simulated=False, told={})
    story, _, others = text.partition("\n\nalso:\n")
    assert "/src/engine.py:1" in story
    assert others.splitlines()[0] == "    /src/engine.py:2: in probe"
    assert others.splitlines()[-1] == "    ... and 2 more (--cuda-fork-ledger=FILE keeps all)"


def test_one_place_has_no_others() -> None:
    findings = [one(CudaTouchError), one(CudaTouchError)]
    history = History([findings[0].record])
    assert "also:" not in tell(findings, history, simulated=False, told={})


@pytest.mark.parametrize("error", [CudaTouchError, PoisonedTouchError, CudaForkError])
def test_a_culprit_that_was_told_is_told_in_short(error: Any) -> None:
    first = {**touch(PYTEST), "entry": "cuInit", "stack": ENGINE}
    found = one(error, line=3 if error is CudaTouchError else 9)
    if error is CudaForkError:
        found = Finding({**fork(CHILD), "stack": ENGINE}, error)
    history = History([first, {"k": "child", "pid": CHILD, "parent": PYTEST}, found.record])
    culprit = found.culprit(history)
    assert culprit == "/src/engine.py:3"
    text = tell([found], history, simulated=False, told={culprit: "test_first"})
    assert "as above: told in full at test_first" in text
    assert "(in probe)" in text.splitlines()[0]
    assert "what to do:" not in text
    assert "what to do:" in tell([found], history, simulated=False, told={"other": "test_first"})


def test_a_finding_knows_the_line_to_look_at() -> None:
    assert one(CudaTouchError).at == ("/src/engine.py", 3)
    assert one(CudaForkError, line=7).at == ("/src/engine.py", 7)
    assert Finding(touch(), CudaTouchError).at is None
    assert Finding(touch(), PoisonedTouchError).culprit(History([])) == ""
