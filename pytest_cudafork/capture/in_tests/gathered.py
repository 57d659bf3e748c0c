"""What was found of the captures of a session, gathered from the reports of all its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_cudafork.capture.in_tests.words import key_of
from pytest_cudafork.capture.interface.check_names import LOOKED_AT

_NUMBERS = ("captures", "replays", "judged", "silenced", "elsewhere", "replays_elsewhere")


class Gathered:
    """Findings, each once with the tests that had it, and counts.

    Attributes:
        errors: the findings that fail tests, as plain values with ``tests`` and ``fails``.
        suspicions: those that fail none, with ``tests``.
        not_judged: how many values could not be judged, by the reason.
        captures: how many captures were looked at.
        replays: how many replays were.
        judged: how many values were looked at.
        silenced: how many findings comments have silenced.
        elsewhere: how many captures other threads than those of tests have made, unseen.
        replays_elsewhere: how many replays they have made, or were of graphs captured unseen.

    """

    def __init__(self) -> None:
        self._errors: dict[str, dict[str, Any]] = {}
        self._suspicions: dict[str, dict[str, Any]] = {}
        self.not_judged: Counter[str] = Counter()
        self.captures = self.replays = self.judged = self.silenced = 0
        self.elsewhere = self.replays_elsewhere = 0
        self._told = False

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The findings that fail tests."""
        return list(self._errors.values())

    @property
    def suspicions(self) -> list[dict[str, Any]]:
        """The findings that fail none."""
        return list(self._suspicions.values())

    def add(self, report: Any) -> None:
        """Take what a report says of captures, if it does."""
        told = getattr(report, LOOKED_AT, None)
        if not isinstance(told, dict):
            return
        self._told = True
        failed = bool(getattr(report, "failed", False))
        _add(self._suspicions, told.get("suspicions", ()), report.nodeid)
        for found in _add(self._errors, told.get("errors", ()), report.nodeid):
            # of a replay that raises, what was found counts only where the test fails for it
            found["fails"] = found.get("fails", False) or failed
        self.not_judged.update(told.get("not_judged", {}))
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + told.get(name, 0))

    def content(self, *, looked: bool) -> dict[str, Any] | None:
        """Return all of it as plain data; None: nobody looked.

        Args:
            looked: Whether the session was told to look at the captures of all tests.

        """
        if not looked and not self._told:
            return None
        return {
            "captures": self.captures,
            "replays": self.replays,
            "errors": self.errors,
            "suspicions": self.suspicions,
            "judged": self.judged,
            "not_judged": dict(self.not_judged),
            "silenced": self.silenced,
            "elsewhere": self.elsewhere,
            "replays_elsewhere": self.replays_elsewhere,
        }


def _add(
    known: dict[str, dict[str, Any]], found: Iterable[Mapping[str, Any]], test: str
) -> list[dict[str, Any]]:
    """Add findings of a test to those that are known; return them as they are kept."""
    kept = []
    for each in found:
        plain = {name: value for name, value in each.items() if name != "raised"}
        one = known.setdefault(key_of(each), {**plain, "tests": []})
        if test not in one["tests"]:
            one["tests"].append(test)
        kept.append(one)
    return kept
