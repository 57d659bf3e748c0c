"""The words for tests that cannot fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, Counted
from pytest_cudafork.capture.rerun.verdict import NOTICES, PROPERTY, Again, AuditedTests, sentence

SPOILED = Counted(2, 2)


def test_a_test_that_passes_without_its_replays_checks_nothing() -> None:
    assert sentence(Counted(1), {IDLE: Again(True, SPOILED)}) == (
        "checks nothing: it passes though its replay does nothing and what it would write is "
        "poisoned"
    )
    assert "its 2 replays do nothing and what they" in sentence(
        Counted(2), {IDLE: Again(True, SPOILED)}
    )


def test_a_test_that_passes_with_other_inputs_checks_nothing() -> None:
    runs = {IDLE: Again(False, SPOILED), CHANGED: Again(True, SPOILED)}
    assert sentence(Counted(1), runs).startswith("checks nothing: it passes though the inputs")


def test_a_test_that_fails_with_spoiled_replays_notices() -> None:
    runs = {IDLE: Again(False, SPOILED), CHANGED: Again(False, SPOILED)}
    assert sentence(Counted(1), runs) == NOTICES
    assert sentence(Counted(1, changes=True), {IDLE: Again(False, SPOILED)}) == NOTICES


def test_a_run_in_which_nothing_was_spoiled_says_nothing_against_a_test() -> None:
    assert sentence(Counted(1), {IDLE: Again(True, Counted(2))}) == NOTICES
    runs = {IDLE: Again(False, SPOILED), CHANGED: Again(True, Counted(2))}
    assert sentence(Counted(1), runs) == NOTICES


def test_a_run_that_says_nothing_is_told() -> None:
    runs = {IDLE: Again(None, why="it is skipped"), CHANGED: Again(False, SPOILED)}
    assert sentence(Counted(1), runs) == "not judged: it is skipped"


def test_a_test_whose_replays_are_not_all_spoiled_is_not_accused() -> None:
    both = Counted(1, elsewhere=1)
    assert sentence(both, {IDLE: Again(True, SPOILED)}).startswith("not judged: other threads")
    assert sentence(both, {IDLE: Again(False, SPOILED)}) == NOTICES
    assert sentence(Counted(elsewhere=2), {}).startswith("not judged: other threads")


def _audited(**said: str) -> AuditedTests:
    """The tests of a session, of each of which its teardown says this."""
    tests = AuditedTests()
    for name, text in said.items():
        for properties in ([("another", "1")], [("another", "1"), (PROPERTY, text)]):
            report: Any = SimpleNamespace(nodeid=f"t.py::{name}", user_properties=properties)
            tests.add(report)
    return tests


def test_the_section_lists_those_that_check_nothing_first() -> None:
    tests = _audited(a="not judged: why", b="checks nothing: it passes", c=NOTICES)
    first, *lines = tests.lines()
    assert first == "3 tests that replay a graph and passed: 1 cannot fail, 1 not judged"
    assert lines[:2] == ["t.py::b checks nothing: it passes", "t.py::a not judged: why"]
    assert lines[2].startswith("what to do: compare")
    assert _audited(a=NOTICES).lines() == [
        "1 test that replays a graph and passed: 0 cannot fail, 0 not judged"
    ]


def test_other_programs_get_the_same_as_plain_data() -> None:
    assert _audited().content() is None
    tests = _audited(a="not judged: why", b="checks nothing: it passes", c=NOTICES)
    assert tests.content() == {
        "audited": 3,
        "cannot_fail": [{"test": "t.py::b", "why": "it passes"}],
        "not_judged": [{"test": "t.py::a", "why": "why"}],
    }
