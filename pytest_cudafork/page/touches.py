"""Touches by the line that is to blame, as many of them may come from one; programs of tests."""

from __future__ import annotations

from typing import Any, NamedTuple


class TouchGroup(NamedTuple):
    """Touches with the same culprit.

    Attributes:
        first: The first of them, whose stack and import chain are shown.
        all: All of them.
        processes: In how many processes they were.
        tests: The tests in which they were, each once.

    """

    first: dict[str, Any]
    all: tuple[dict[str, Any], ...]
    processes: int
    tests: tuple[str, ...]


def touch_groups(document: dict[str, Any]) -> list[TouchGroup]:
    """Return the touches of a session's document, by culprit, in the order of the first."""
    check = document["check"]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for touch in [] if check is None else check["touches"]:
        key = (touch["culprit"], touch["words"], touch["call"], touch["poisoned"])
        groups.setdefault(key, []).append(touch)
    return [
        TouchGroup(
            touches[0],
            tuple(touches),
            len({touch["process"] for touch in touches}),
            tuple(dict.fromkeys(touch["test"] for touch in touches if touch["test"])),
        )
        for touches in groups.values()
    ]


def programs_of(document: dict[str, Any]) -> dict[str, str]:
    """Return the commands that tests have started, by process: not those of this plugin."""
    check = document["check"]
    kinds = {str(each["process"]): each["kind"] for each in document["timeline"]["processes"]}
    return {
        number: command
        for number, command in ({} if check is None else check["processes"]).items()
        if kinds.get(number, "program") == "program"
    }


def test_of(words: str) -> str:
    """Return the node id in the words of a touch for a test and its phase."""
    nodeid, bracket, phase = words.rpartition(" (")
    return nodeid if bracket and phase.endswith(")") else words
