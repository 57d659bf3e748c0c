"""Time limits of children of this process that are over as soon as one hangs, and not before.

A limit that a test can wait for is too short where much else runs: it is over before the child has
come to the place where it is to hang. So such a child has a limit that none comes near, ``LIMIT``,
and tells when it hangs, mostly by a file. Then the clock by which children are watched leaps over
that limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_cudafork.process import supervision

LIMIT = 600.0
"""Seconds; the limit of children that hang."""


class _LeapingTime:
    """The module ``time``, whose clock leaps over the limit when something hangs."""

    def __init__(self, hangs: Callable[[], object]) -> None:
        self._hangs = hangs
        self._leap = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        """Return the time, or a later one."""
        if not self._leap and self._hangs():
            self._leap = LIMIT + 1
        return time.monotonic() + self._leap


def leap_when(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[], object]) -> None:
    """Let the time of ``LIMIT`` pass once something is true."""
    monkeypatch.setattr(supervision, "time", _LeapingTime(hangs))
    monkeypatch.setattr(supervision, "_LONGEST_WAIT_SECONDS", 0.05)  # it is noticed so soon
