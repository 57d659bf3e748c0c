"""No verdict is an artifact of the fork server: what a fresh interpreter confirms, and who wins."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.imports.audit.confirm import (
    MOST_CRASHES,
    MOST_ERRORS,
    SAMPLE,
    CheckedRecord,
    Confirmer,
    agree,
    sample_order,
)
from pytest_cudafork.imports.audit.verdicts import OVER_MEMORY
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.touch import Touch
from tests.support.imports import TOUCH, audit_here, verdicts_of, write_package


def record(
    module: str, verdict: ImportVerdict = ImportVerdict.CLEAN, where: str = ""
) -> ImportRecord:
    """Return a record; ``where`` is a culprit line, or an error."""
    if not verdict.touched:
        return ImportRecord(module, "pkg", verdict, reason=where)
    file, _, line = where.partition(":")
    stack = [[file, int(line), "<module>", 0]]
    touch = Touch.from_record({"id": "1-1", "pid": 1, "t": 1, "entry": "cuInit", "stack": stack})
    return ImportRecord(module, "pkg", verdict, touches=(touch,))


class Fresh:
    """Fresh interpreters that say what they are told to; notes which modules were asked for."""

    def __init__(self, says: Callable[[str], ImportRecord]) -> None:
        self._says = says
        self.asked: list[str] = []

    def __call__(self, module: str) -> ImportRecord:
        self.asked.append(module)
        return self._says(module)


def check_all(
    forked: list[ImportRecord], afresh: dict[str, ImportRecord]
) -> tuple[list[CheckedRecord], list[str]]:
    confirmer = Confirmer("pkg", [each.module for each in forked])
    fresh = Fresh(afresh.__getitem__)
    return [confirmer.check(each, fresh) for each in forked], fresh.asked


_WHERES = st.sampled_from(["a.py:1", "b.py:2", "c.py:3"])
_ERRORS = st.sampled_from(["ImportError: x", "OSError: y", "KeyError: z", "A: 1", "B: 2"])
_VERDICTS = st.sampled_from(list(ImportVerdict))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[ImportRecord], dict[str, ImportRecord]]:
    """Return what the fork server says of some modules, in some order, and what is true."""
    names = [f"pkg.m{number}" for number in range(draw(st.integers(1, 30)))]
    forked, afresh = [], {}
    for name in names:
        verdict = draw(_VERDICTS)
        where = draw(_WHERES if verdict.touched else _ERRORS)
        forked.append(record(name, verdict, where))
        afresh[name] = forked[-1]
        if draw(st.booleans()):
            other = draw(_VERDICTS)
            afresh[name] = record(name, other, draw(_WHERES if other.touched else _ERRORS))
    return draw(st.permutations(forked)), afresh


@given(worlds())
def test_what_a_fresh_interpreter_says_counts(
    world: tuple[list[ImportRecord], dict[str, ImportRecord]],
) -> None:
    forked, afresh = world
    checked, asked = check_all(forked, afresh)
    assert [each.record.module for each in checked] == [each.module for each in forked]
    assert Counter(asked).most_common(1)[0][1] == 1 if asked else True
    for first, (last, artifact) in zip(forked, checked, strict=True):
        truth = afresh[first.module]
        too_slow = (
            truth.verdict is ImportVerdict.TIMED_OUT
            and first.verdict is not ImportVerdict.TIMED_OUT
        )
        if first.module not in asked or too_slow:
            assert last == first
            assert last.confirmed is None
        else:
            assert agree(last, truth)
            assert last.confirmed is agree(first, truth)
        assert bool(artifact) is (last.confirmed is False)


@given(worlds())
def test_every_culprit_line_was_asked_about_and_no_distrusted_one_is_taken_on_trust(
    world: tuple[list[ImportRecord], dict[str, ImportRecord]],
) -> None:
    forked, afresh = world
    checked, asked = check_all(forked, afresh)
    wrong: set[str] = set()
    seen: set[str] = set()
    for first, last in zip(forked, checked, strict=True):
        if not first.verdict.touched:
            continue
        if first.where not in seen or first.where in wrong:
            assert first.module in asked
        seen.add(first.where)
        if last.record.confirmed is False:
            wrong.add(first.where)


@pytest.mark.slow
@given(worlds())
def test_the_number_of_questions_is_bounded_where_the_fork_server_is_right(
    world: tuple[list[ImportRecord], dict[str, ImportRecord]],
) -> None:
    forked, _ = world
    _, asked = check_all(forked, {each.module: each for each in forked})
    verdict_of = {each.module: each.verdict for each in forked}
    counts = Counter(verdict_of[name] for name in asked)
    lines = {each.where for each in forked if each.verdict.touched}
    assert sum(count for verdict, count in counts.items() if verdict.touched) == len(lines)
    assert counts[ImportVerdict.CLEAN] <= SAMPLE
    assert counts[ImportVerdict.CRASHED] + counts[ImportVerdict.TIMED_OUT] <= MOST_CRASHES
    assert counts[ImportVerdict.NOT_IMPORTABLE] <= MOST_ERRORS
    assert counts[ImportVerdict.NOT_OBSERVABLE] == 0


@given(st.permutations([f"pkg.m{number}" for number in range(20)]))
def test_the_sample_of_the_clean_ones_does_not_depend_on_the_order(names: list[str]) -> None:
    checked, asked = check_all([record(name) for name in names], {n: record(n) for n in names})
    assert set(asked) == set(sample_order("pkg", names)[:SAMPLE])
    assert sum(each.record.confirmed is True for each in checked) == SAMPLE


def test_the_sample_is_drawn_by_the_name_of_the_package() -> None:
    names = [f"m{number}" for number in range(50)]
    assert sample_order("vllm", names) == sample_order("vllm", reversed(names))
    assert sample_order("vllm", names) != sample_order("torch", names)
    assert sorted(sample_order("vllm", names)) == sorted(names)


def test_the_sample_grows_where_one_of_it_is_wrong() -> None:
    names = sample_order("pkg", [f"pkg.m{number}" for number in range(20)])
    afresh = {name: record(name) for name in names}
    afresh[names[0]] = record(names[0], ImportVerdict.TOUCHES, "a.py:1")
    checked, asked = check_all([record(name) for name in names], afresh)
    assert asked == names[: 2 * SAMPLE + 1]
    assert checked[0].record.where == "a.py:1"
    assert checked[0].artifact == "clean"


def test_memory_and_time_that_only_a_fresh_interpreter_needs_prove_nothing() -> None:
    over = record("pkg.big", ImportVerdict.CRASHED, OVER_MEMORY)
    slow = [
        record("pkg.a", ImportVerdict.TOUCHES, "a.py:1"),
        record("pkg.b", ImportVerdict.TOUCHES, "a.py:1"),
    ]
    afresh = {"pkg.a": record("pkg.a", ImportVerdict.TIMED_OUT)}
    checked, asked = check_all([over, *slow], afresh)
    assert asked == ["pkg.a"]
    assert [each.record for each in checked] == [over, *slow]


def test_agreement_is_about_the_verdict_and_the_line() -> None:
    first = record("pkg.a", ImportVerdict.TOUCHES, "a.py:1")
    assert agree(first, dataclasses.replace(first, seconds=3, output="x", loaded=("y",)))
    assert not agree(first, record("pkg.a", ImportVerdict.TOUCHES, "a.py:2"))
    assert not agree(first, record("pkg.a", ImportVerdict.TOUCHES_THEN_FAILS, "a.py:1"))
    assert agree(
        record("pkg.a", ImportVerdict.CRASHED, "by SIGSEGV"),
        record("pkg.a", ImportVerdict.CRASHED, "status 1"),
    )


# -- with a real fork server ----------------------------------------------------------------------

# Many import ``common``, so it is preloaded; it changes what others do afterwards.
_SHIFTY = {
    "__init__": "MODE = 'fresh'",
    "common": "import shifty\nshifty.MODE = 'shared'",
    "only_shared": f"import shifty\nif shifty.MODE == 'shared':\n    {TOUCH}",
    "only_fresh": f"import shifty\nif shifty.MODE == 'fresh':\n    {TOUCH}",
    "fails_shared": "import shifty\nif shifty.MODE == 'shared':\n    raise ValueError(shifty.MODE)",
    "dies_shared": "import os, shifty\nif shifty.MODE == 'shared':\n    os._exit(3)",
    **{f"user{number}": "import shifty.common" for number in range(9)},
}


@pytest.mark.slow
def test_artifacts_of_a_real_fork_server_are_corrected(tmp_path: Path) -> None:
    write_package(tmp_path, "shifty", _SHIFTY)
    first_in_sample = sample_order("shifty", [f"shifty.{name}" for name in _SHIFTY])
    raw = verdicts_of(audit_here("shifty", tmp_path, confirm=False))
    assert raw["shifty.only_shared"] == "touches", "common was not preloaded"
    assert raw["shifty.only_fresh"] == "clean"
    records = audit_here("shifty", tmp_path)
    for name in ("only_shared", "fails_shared", "dies_shared"):
        assert records[f"shifty.{name}"].verdict is ImportVerdict.CLEAN
        assert records[f"shifty.{name}"].confirmed is False
    assert records["shifty.common"].verdict is ImportVerdict.CLEAN
    sampled = "shifty.only_fresh" in first_in_sample[:SAMPLE]
    assert (records["shifty.only_fresh"].verdict is ImportVerdict.TOUCHES) is sampled


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 40])
def test_few_modules_and_many_get_the_same_answers(tmp_path: Path, count: int) -> None:
    files = {f"m{number}": TOUCH if number % 5 == 0 else "import json" for number in range(count)}
    write_package(tmp_path, "many", {"__init__": "", **files})
    records = audit_here("many", tmp_path, confirm=False)
    expected = {
        f"many.{name}": "touches" if text == TOUCH else "clean" for name, text in files.items()
    }
    assert verdicts_of(records) == {"many": "clean", **expected}
