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
    """The module ``time``, whose clock has leaped so far."""

    def __init__(self) -> None:
        self.leap = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        """Return the time, or a later one."""
        return time.monotonic() + self.leap


def leap_when(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[], object]) -> None:
    """Let the time of ``LIMIT`` pass once something is true, and a child is waited for.

    Not before: the child may be faster than the one who starts it, and then the time at which its
    limit begins would be one after the leap.
    """
    clock = _LeapingTime()
    wait = supervision.Supervisor._wait

    def wait_a_moment(self: supervision.Supervisor, seconds: float | None) -> bool:
        if not clock.leap and hangs():
            clock.leap = LIMIT + 1
            seconds = 0.0
        return wait(self, 0.05 if seconds is None else min(seconds, 0.05))

    monkeypatch.setattr(supervision, "time", clock)
    monkeypatch.setattr(supervision.Supervisor, "_wait", wait_a_moment)
