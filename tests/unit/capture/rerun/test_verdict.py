"""The words for tests that cannot fail."""

from __future__ import annotations

from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, Counted
from pytest_cudafork.capture.rerun.verdict import NOTICES, Again, audit_lines, sentence

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


def test_the_section_lists_those_that_check_nothing_first() -> None:
    told = [("t.py::a", "not judged: why"), ("t.py::b", "checks nothing: it passes")]
    first, *lines = audit_lines(told, 3)
    assert first == "3 tests that replay a graph and passed: 1 cannot fail, 1 not judged"
    assert lines[:2] == ["t.py::b checks nothing: it passes", "t.py::a not judged: why"]
    assert lines[2].startswith("what to do: compare")
    assert audit_lines([], 1) == [
        "1 test that replays a graph and passed: 0 cannot fail, 0 not judged"
    ]
