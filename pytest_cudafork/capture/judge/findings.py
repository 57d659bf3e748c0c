"""What is found of captured graphs; in_tests/words.py has the words of a failure."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_cudafork.capture.story.findings import source_of


class Level(enum.Enum):
    """What becomes of a finding."""

    ERROR = "fails the test"
    SUSPICION = "is listed once"


class GraphFinding(NamedTuple):
    """One thing that is wrong with a graph, or that looks like it.

    Attributes:
        kind: the name of the check.
        level: what becomes of it.
        what: one sentence with the values.
        lines: what happened where: a few words each, with ``file:line``.
        why: why it matters.
        todo: what to do next.

    """

    kind: str
    level: Level
    what: str
    lines: tuple[tuple[str, str], ...] = ()
    why: str = ""
    todo: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What two findings have in common that are one: the same check of the same lines."""
        return (self.kind, *(where for _, where in self.lines))

    def plain(self) -> dict[str, Any]:
        """Return it as values that a report can carry."""
        names = "kind", "what", "why", "todo"
        lines = [[words, where] for words, where in self.lines]
        return {**{name: getattr(self, name) for name in names}, "lines": lines}


_IGNORE = re.compile(r"#.*\bcaptures: ignore(?:\[([^\]]*)\])?")
"""A comment on one of the lines of a finding that silences it; ``[kind, kind]``: only these."""


def is_silenced(finding: GraphFinding) -> bool:
    """Whether a comment on one of its lines says that it is to be ignored."""
    for _, where in finding.lines:
        found = _IGNORE.search(source_of(where))
        if found is not None:
            kinds = found[1]
            if kinds is None or finding.kind in (kind.strip() for kind in kinds.split(",")):
                return True
    return False


def _nothing() -> None:
    """Stand for nobody who hears of findings."""


class Findings:
    """What was found since it was last asked; a suspicion once in a process.

    An error is told of each test that has it: none may pass because another one has failed.
    """

    def __init__(self) -> None:
        self._said: set[tuple[str, ...]] = set()
        self.heard: Callable[[], object] = _nothing
        """Called for each finding that is new, and after each event; the next ``take`` has it."""
        self.in_replay = False
        """Whether a replay is under way, of which it is not known whether it raises."""
        self._begin()

    def _begin(self) -> None:
        self._errors: dict[tuple[str, ...], GraphFinding] = {}
        self._suspicions: list[GraphFinding] = []
        self._silenced = 0
        self._of_replay: list[tuple[str, ...]] = []
        self._raised: set[tuple[str, ...]] = set()
        self._not_judged: Counter[str] = Counter()
        self._judged = 0
        self._captures = self._replays = self._elsewhere = self._replays_elsewhere = 0
        self._backends: set[str] = set()

    def saw_capture(self, backend: str) -> None:
        """Count a capture that is looked at."""
        self._captures += 1
        self._backends.add(backend)

    def saw_elsewhere(self) -> None:
        """Count a capture of another thread, which is not looked at."""
        self._elsewhere += 1
        self.heard()

    def saw_replay_elsewhere(self) -> None:
        """Count a replay of another thread, or of a graph whose capture nobody saw."""
        self._replays_elsewhere += 1
        self.heard()

    def saw_replay(self, backend: str) -> None:
        """Count a replay of such a graph."""
        self._replays += 1
        self._backends.add(backend)

    def add(self, finding: GraphFinding) -> None:
        """Note a finding."""
        if is_silenced(finding):
            self._silenced += finding.key not in self._said
            self._said.add(finding.key)
        elif finding.level is Level.ERROR:
            if finding.key not in self._errors:
                self._errors[finding.key] = finding
                self._of_replay.append(finding.key)
                self.heard()
        elif finding.key not in self._said:
            self._said.add(finding.key)
            self._suspicions.append(finding)
            self.heard()

    def replay_begins(self) -> None:
        """Take what is found from here on as found of one replay."""
        self._of_replay.clear()
        self.in_replay = True

    def replay_raised(self) -> None:
        """Note that the replay was refused: what was found of it counts if the test fails."""
        self._raised.update(self._of_replay)

    def event_ends(self) -> None:
        """Note that a capture or a replay is over, and all is said of it."""
        self.in_replay = False
        self.heard()

    def judged(self) -> None:
        """Count a value of which could be said whether it is out of date."""
        self._judged += 1

    def cannot(self, what: str) -> None:
        """Count a value of which this could not be said, with the reason."""
        self._not_judged[what] += 1

    def take(self) -> dict[str, Any]:
        """Return all since the last call as plain values; {}: nothing."""
        errors = self._errors.items()
        found = {
            "errors": [{**each.plain(), "raised": key in self._raised} for key, each in errors],
            "suspicions": [each.plain() for each in self._suspicions],
            "not_judged": dict(self._not_judged),
            "judged": self._judged,
            "silenced": self._silenced,
            "elsewhere": self._elsewhere,
            "replays_elsewhere": self._replays_elsewhere,
        }
        told: dict[str, Any] = {name: each for name, each in found.items() if each}
        if self._backends:
            told["captures"], told["replays"] = self._captures, self._replays
            told["backends"] = sorted(self._backends)
        self._begin()
        return told
