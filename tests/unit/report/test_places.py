"""The places of the last section, grouped by culprit."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.report import places

FORK: dict[str, Any] = {"k": "fork", "id": "f", "t": 9, "pid": 1, "verdict": "guarded"}


def touch(line: int = 3, test: str = "", **fields: Any) -> dict[str, Any]:
    """Return a touch at this line, at collection if in no test."""
    return {
        "k": "touch", "id": f"t{line}", "t": line, "pid": 1, "entry": "cuInit",
        "stack": [["/src/engine.py", line, "probe", 3]], "test": test and f"{test} (call)",
        "phase": "" if test else "collect test_it.py", "owner": "1", **fields,
    }  # fmt: skip


def test_only_touches_outside_tests_are_those_of_imports() -> None:
    assert places.import_lines(History([touch(test="a"), touch(poisoned=True)])) == []
    listed = places.import_lines(History([touch(phase="start")] * 2))
    assert listed[0] == "touched before any test (2 times):"
    assert "    what to do:" in listed


def test_a_place_of_several_workers_is_counted_with_its_processes() -> None:
    records = [touch(phase="start"), touch(phase="start", id="b"), touch(phase="start", pid=2)]
    lines = places.import_lines(History(records), told={"/src/engine.py:3"})
    assert lines[0] == "touched before any test (3 times in 2 processes):"


def test_a_touch_after_the_tests_is_none_of_an_import() -> None:
    assert places.import_lines(History([touch(phase="")]))[0] == "touched outside of tests:"


def test_more_than_ten_places_are_counted() -> None:
    records = [touch(line) for line in range(1, 13)]
    lines = places.import_lines(History([*records, records[0]]))
    assert lines[0] == "touched before any test (2 times):"
    assert lines[-1] == "... and at 2 more places"
    assert sum(line.startswith("also at ") for line in lines) == 9


def test_a_place_that_a_failure_has_told_is_named_alone() -> None:
    lines = places.import_lines(History([touch(3), touch(4)]), told={"/src/engine.py:3"})
    assert lines == [
        "touched before any test:",
        "  /src/engine.py:3: in probe (told above)",
        "also at /src/engine.py:4: in probe",
    ]


def test_touches_in_tests_are_named_by_culprit() -> None:
    history = History([touch(test="a"), touch(test="b"), touch(4, test="b"), touch(test="b")])
    assert places.test_lines(history, verbose=False) == [
        "touched in tests:",
        "  /src/engine.py:3: in probe (3 times in 2 tests)",
        "  /src/engine.py:4: in probe (in b)",
    ]
    assert places.test_lines(history, verbose=True)[2:4] == ["    a", "    b"]
    assert places.test_lines(History([touch(), touch(test="a", poisoned=True)]), verbose=True) == []


def test_touches_in_processes_of_a_test_are_counted_and_shown_if_verbose() -> None:
    history = History([touch(test="a", pid=2), touch(4, test="a", pid=2)])
    assert places.test_lines(history, verbose=False) == [
        "touched in processes that tests have started: at 2 places (-v shows them)"
    ]
    assert places.test_lines(history, verbose=True) == [
        "touched in processes that tests have started:",
        "  /src/engine.py:3: in probe (in a)",
        "  /src/engine.py:4: in probe (in a)",
    ]
    (line,) = places.test_lines(History([touch(test="a", pid=2)]), verbose=False)
    assert "at 1 place " in line


def test_many_places_in_tests_are_counted_unless_verbose() -> None:
    history = History([touch(line, test="a") for line in range(1, 15)])
    lines = places.test_lines(history, verbose=False)
    assert len(lines) == 12
    assert lines[-1] == "  ... and at 4 more places (-v shows all)"
    assert len(places.test_lines(history, verbose=True)) == 15


@pytest.mark.parametrize(
    ("expected", "note"), [((), ""), (["f0"], ", 1 expected"), (["f0", "f1"], ", all expected")]
)
def test_refused_forks_are_counted_by_what_initialized(expected: list[str], note: str) -> None:
    forks = [{**FORK, "id": f"f{number}"} for number in range(2)]
    other = [{**FORK, "id": "other", "pid": 7}, {**FORK, "verdict": "allowed"}]
    lines = places.fork_lines(History([touch(), *forks, *other]), expected)
    assert lines == [
        f"2 forks refused because of /src/engine.py:3 (in probe){note}",
        "1 fork refused because of something that was not seen",
    ]


def test_the_culprits_of_what_was_reported_are_told() -> None:
    child = {"k": "child", "pid": 2, "parent": 1}
    poisoned = touch(8, pid=2, poisoned=True)
    history = History([touch(), child, poisoned, FORK, touch(5, pid=3)])
    for reported, told in {
        (): set(),
        ("f",): {"/src/engine.py:3"},
        ("t8",): {"/src/engine.py:3"},
        ("t5",): {"/src/engine.py:5"},
        ("else",): set(),
    }.items():
        assert places.told_culprits(history, reported) == told


def test_forks_that_were_let_through_are_named_with_their_rule() -> None:
    stack = [["/src/run.py", 7, "start", 3]]
    fork = {**FORK, "stack": stack, "verdict": "allowed", "rule": "marker cuda_fork_ok: no CUDA"}
    watched = {**FORK, "stack": stack, "verdict": "watched", "rule": "level poison"}
    history = History([fork, {**FORK, "stack": stack}, fork, watched])
    assert places.allowed_lines(history) == [
        "forks allowed while initialized:",
        "  /src/run.py:7 in start: marker cuda_fork_ok: no CUDA (2 times)",
        "  /src/run.py:7 in start: level poison",
    ]
    assert places.allowed_lines(History([FORK])) == []
