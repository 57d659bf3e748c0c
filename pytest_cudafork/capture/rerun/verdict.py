"""What two more runs of a test say of it, in words."""

from __future__ import annotations

from typing import NamedTuple

from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, Counted

__all__ = ["NOTICES", "PROPERTY", "Again", "audit_lines", "not_judged", "sentence"]

PROPERTY = "cudafork_replay_audit"
"""The property of a report that holds what was found of a test."""

NOTICES = "notices"
"""What the property says of a test in which nothing is wrong."""

_NOTHING = "checks nothing: "
_NOT_JUDGED = "not judged: "


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


def audit_lines(told: list[tuple[str, str]], audited: int) -> list[str]:
    """Return the lines of the section.

    Args:
        told: tests and what is said of them.
        audited: how many tests were run once more.

    """
    vain = [(test, text) for test, text in told if text.startswith(_NOTHING)]
    unknown = [(test, text) for test, text in told if not text.startswith(_NOTHING)]
    tests = "1 test that replays" if audited == 1 else f"{audited} tests that replay"
    first = f"{tests} a graph and passed: {len(vain)} cannot fail, {len(unknown)} not judged"
    lines = [first, *(f"{test} {text}" for test, text in (*vain, *unknown))]
    if vain:
        lines.append(
            "what to do: compare what the replay leaves with what eager code computes, on inputs "
            "changed since the capture (pytest_cudafork.assert_replay_equals_eager does both)"
        )
    return lines
