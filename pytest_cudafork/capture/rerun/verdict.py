"""What two more runs of a test say of it, in words; and of all tests of a session together."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, Counted
from pytest_cudafork.counted import count_of
from pytest_cudafork.observe.story.plain_text import plain

PROPERTY = "cudafork_replay_audit"
"""The property of a report that holds what was found of a test."""

NOTICES = "notices"
"""What the property says of a test in which nothing is wrong."""

_NOTHING = "checks nothing: "
_NOT_JUDGED = "not judged: "
_ELSEWHERE = (
    "other threads than that of the test capture or replay graphs, or their capture was not looked "
    "at: such replays cannot be spoiled"
)


class Again(NamedTuple):
    """How a test went that was run once more.

    ``passed`` is None where nothing can be concluded, and ``why`` says why.
    """

    passed: bool | None
    counted: Counted = Counted()
    why: str = ""


def sentence(counted: Counted, runs: dict[str, Again]) -> str:
    """Return what is to be said of a test.

    Args:
        counted: its replays when it ran as it is.
        runs: its other runs, by how replays were spoiled.

    """
    if not counted.replays:
        return not_judged(_ELSEWHERE)
    said = _of_runs(counted, runs)
    accused = said.startswith(_NOTHING)
    return not_judged(_ELSEWHERE) if accused and counted.elsewhere else said


def _of_runs(counted: Counted, runs: dict[str, Again]) -> str:
    one = counted.replays == 1
    replays = "its replay does" if one else f"its {counted.replays} replays do"
    written = f"what {'it' if one else 'they'} would write is poisoned"
    idle, changed = runs.get(IDLE), runs.get(CHANGED)
    if idle is not None and idle.passed and idle.counted.spoiled:
        return f"{_NOTHING}it passes though {replays} nothing and {written}"
    if changed is not None and changed.passed and changed.counted.spoiled:
        return (
            f"{_NOTHING}it passes though the inputs of its graphs, which it never changes, are "
            "others while they are replayed"
        )
    for run in (idle, changed):
        if run is not None and run.passed is None:
            return not_judged(run.why)
    return NOTICES


def not_judged(why: str) -> str:
    """Return what is to be said of a test of which nothing is known."""
    return f"{_NOT_JUDGED}{why}"


class AuditedTests:
    """The tests that were run once more, and what is said of them, as their reports have it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take what a report says of it, if it does."""
        for name, text in report.user_properties:
            if name == PROPERTY:
                self._texts[report.nodeid] = str(text)

    def __len__(self) -> int:
        """How many they are."""
        return len(self._texts)

    def _said(self, beginning: str) -> dict[str, str]:
        """Return the tests of which something is said that begins so, with the rest of it."""
        texts = self._texts.items()
        return {
            test: text.removeprefix(beginning) for test, text in texts if text.startswith(beginning)
        }

    def lines(self) -> list[str]:
        """Return the lines of the section."""
        vain, unknown = self._said(_NOTHING), self._said(_NOT_JUDGED)
        tests = count_of(len(self), "test that replays", "tests that replay")
        lines = [f"{tests} a graph and passed: {len(vain)} cannot fail, {len(unknown)} not judged"]
        lines += [f"{test} {_NOTHING}{why}" for test, why in vain.items()]
        lines += [f"{test} {_NOT_JUDGED}{why}" for test, why in unknown.items()]
        if vain:
            lines.append(
                "what to do: compare what the replay leaves with what eager code computes, on "
                "inputs changed since the capture (pytest_cudafork.assert_replay_equals_eager does "
                "both)"
            )
        return lines

    def content(self) -> dict[str, Any] | None:
        """Return it as plain data; None where no test was run once more."""
        if not self._texts:
            return None
        return {
            "audited": len(self),
            "cannot_fail": [_plain(*each) for each in self._said(_NOTHING).items()],
            "not_judged": [_plain(*each) for each in self._said(_NOT_JUDGED).items()],
        }


def _plain(test: str, why: str) -> dict[str, str]:
    return {"test": plain(test), "why": plain(why)}
