"""Tests of the words for how a process ended."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.process import exit_status


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (139, "exited with status 139 (a shell's way to say SIGSEGV)"),
        (255, "exited with status 255"),
        (-signal.SIGSEGV, "was killed by SIGSEGV (exit status -11)"),
        (-signal.SIGRTMIN - 3, f"was killed by SIGRTMIN+3 (exit status {-signal.SIGRTMIN - 3})"),
        (None, "ended with an unknown status"),
    ],
)
def test_an_exit_code_is_told_in_words(code: int | None, words: str) -> None:
    assert exit_status.describe(code) == words


def test_sigkill_hints_at_the_memory() -> None:
    assert "out of memory?" in exit_status.describe(-signal.SIGKILL)
    assert "memory" not in exit_status.describe(-signal.SIGSEGV)


@given(st.integers(min_value=-300, max_value=300))
def test_every_exit_code_has_words(code: int) -> None:
    assert str(code) in exit_status.describe(code)
    assert bool(exit_status.signal_name(code)) == (code < 0)


def test_what_could_not_report_is_told_by_its_status_alone() -> None:
    assert exit_status.lost(70, "it") == (
        "; it could not report: did it close descriptors that it did not open?"
    )
    assert not any(exit_status.lost(code, "it") for code in (None, 0, 1, -9))


def test_stacks_are_shortened_to_the_frames_of_the_test() -> None:
    stacks = (
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "w.py", line 1 in work\n\n'
        'Current thread 0x2 (most recent call first):\n  File "t.py", line 2 in test_x\n'
        '  File "_pytest/python.py", line 3 in pytest_pyfunc_call\n  File "m.py", line 4 in main'
    )
    assert exit_status.shorten(stacks) == (
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "w.py", line 1 in work\n\n'
        'Current thread 0x2 (most recent call first):\n  File "t.py", line 2 in test_x\n'
        "  ... 2 frames of pytest and its start"
    )
