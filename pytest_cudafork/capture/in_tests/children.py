"""What forked children of a test find of its captures, written for the process that runs the test.

The watch over a thread goes on in a child that is forked within a phase of a test. Such a child
writes down each event at once (``child_lines.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from pytest_cudafork.capture.in_tests.child_lines import ChildLines
from pytest_cudafork.capture.in_tests.words import key_of
from pytest_cudafork.capture.interface.seen import Watch
from pytest_cudafork.capture.judge.findings import Findings
from pytest_cudafork.compat.unpatched import os


class Children:
    """What the forked children of one process that runs tests find.

    Args:
        findings: those of the captures of this process; a child has a copy of them.
        watch: that over this process.

    """

    def __init__(self, findings: Findings, watch: Watch) -> None:
        self._findings, self._watch = findings, watch
        self._lines = ChildLines()
        findings.heard = self.heard
        _ALL.add(self)

    def begin(self) -> None:
        """Begin a phase of a test, in this process."""
        self._lines.begin()

    def close(self) -> None:
        """Listen no more."""
        self._lines.close()

    def heard(self) -> None:
        """Write down what is new, in a child."""
        if not self._lines.is_child() or self._findings.in_replay:
            return
        told = self._findings.take()
        if told:
            self._lines.write({"test": self._watch.test, "told": told})

    def forked(self) -> None:
        """Forget, in a child, what its parent will tell."""
        self._findings.take()

    def waits(self) -> bool:
        """Whether a child has written what was not taken."""
        return self._lines.waits()

    def take(self, told: dict[str, Any]) -> dict[str, Any]:
        """Add what children have written since the last call to what was found here."""
        for record in self._lines.read():
            test = record["test"]
            _add(told, record["told"], late_of="" if test == self._watch.test else test)
        return told


_ALL: weakref.WeakSet[Children] = weakref.WeakSet()


def _in_child() -> None:
    for each in list(_ALL):
        each.forked()


os.register_at_fork(after_in_child=_in_child)


def _add(told: dict[str, Any], more: Mapping[str, Any], *, late_of: str) -> None:
    """Add what a child has found; ``late_of`` is its test, if that is over."""
    for level in ("errors", "suspicions"):
        known = {key_of(each): each for each in told.get(level, ())}
        for found in more.get(level, ()):
            if late_of:
                found["what"] += f" (in a process that {late_of} has started)"
            one = known.setdefault(key_of(found), found)
            if "raised" in found:  # a test has it if one of its processes has
                one["raised"] = one["raised"] and found["raised"]
        if known:
            told[level] = list(known.values())
    gaps = told.get("not_judged", {})
    for why, count in more.get("not_judged", {}).items():
        told["not_judged"] = gaps = {**gaps, why: gaps.get(why, 0) + count}
    if "backends" in more:
        told["backends"] = sorted({*told.get("backends", ()), *more["backends"]})
    for name, count in more.items():
        if isinstance(count, int):
            told[name] = told.get(name, 0) + count
