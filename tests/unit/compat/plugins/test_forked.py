"""What runs in the place of pytest-forked, and how its crashes are told."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import forked
from pytest_cudafork.errors import ChildCrashed, ChildError


def item_with(
    claim: forked.Claim | None, *args: object, marked: bool = True, **kwargs: object
) -> Any:
    """Return a test of a session that settled this, with the marker or without."""
    stash = pytest.Stash()
    if claim is not None:
        stash[forked.CLAIM] = claim
    mark = pytest.mark.forked(*args, **kwargs).mark if marked else None
    return SimpleNamespace(
        config=SimpleNamespace(stash=stash),
        get_closest_marker=lambda name: mark,
        location=("test_it.py", 6, "test_a"),
    )


OURS, THEIRS = forked.Claim(ours=True), forked.Claim()
EVERY = forked.Claim(ours=True, every_test=True)


def test_nothing_is_ours_before_it_is_settled() -> None:
    assert forked.claim_of(item_with(None).config) == (False, False)


@pytest.mark.parametrize(
    ("claim", "marked", "isolated"), [(OURS, True, True), (OURS, False, False), (THEIRS, True, 0)]
)
def test_the_marker_counts_where_it_is_ours(
    claim: forked.Claim, marked: bool, isolated: bool
) -> None:
    assert forked.is_marked(item_with(claim, marked=marked)) == isolated


def test_the_marker_takes_no_arguments() -> None:
    told = forked.complaint(item_with(OURS, 1, limit="x"))
    assert "takes no arguments, not forked(1, limit='x'): write @pytest.mark.forked" in told
    assert forked.complaint(item_with(OURS)) == ""
    assert forked.complaint(item_with(THEIRS, 1)) == ""


def crashed(exitcode: int | None) -> ChildCrashed:
    """Return the error of a child that ended so."""
    error = ChildCrashed("the child crashed")
    error.exitcode = exitcode
    return error


@pytest.mark.parametrize(
    ("exitcode", "words"),
    [
        (3, "EXITED with status 3"),
        (-signal.SIGSEGV, "CRASHED with signal 11 (SIGSEGV)"),
        (-63, "CRASHED with signal 63 (UNKNOWN)"),
    ],
)
def test_a_crash_is_told_in_pytest_forkeds_words(exitcode: int, words: str) -> None:
    line = forked.crash_line(item_with(OURS), crashed(exitcode))
    assert line == f"test_it.py:7: running the test {words}"


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (item_with(OURS), ChildError("no crash")),
        (item_with(OURS), crashed(None)),
        (item_with(OURS, marked=False), crashed(3)),
        (item_with(THEIRS), crashed(3)),
    ],
)
def test_other_errors_and_other_tests_have_no_such_line(item: Any, error: ChildError) -> None:
    assert forked.crash_line(item, error) == ""


def test_the_option_stands_for_the_marker_on_every_test() -> None:
    assert forked.crash_line(item_with(EVERY, marked=False), crashed(3))


def test_an_expected_crash_has_both_reasons() -> None:
    assert forked.expected("known", "it crashed") == (
        "reason: known; pytest-cudafork reason: it crashed"
    )
    assert forked.expected("", "it crashed") == "reason: pytest-cudafork reason: it crashed"
