"""The account of a program: what it and all that descends from it did with CUDA, for its reader.

As text for a terminal or a file, and as plain data for other programs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cudafork.check.findings import tell
from pytest_cudafork.counted import count_of
from pytest_cudafork.documents.form import head, plain_stack, plain_touch
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.stories import poisoned_processes
from pytest_cudafork.observe.story.words import headline, indent, touch_lines
from pytest_cudafork.process import exit_status
from pytest_cudafork.programs.deeds import Deeds, Fork

VERSION = 1
"""What reports said of their form before they had ``format_version``."""
TITLE = "CUDA and fork (pytest-cudafork)"
_MOST_PLACES = 8
_NO_FORK = (
    "no fork was seen after that, so no child is affected: it is children forked later that "
    "cannot use CUDA (run --guard refuses such a fork)"
)


@dataclass(frozen=True)
class Account:
    """What a program did.

    Attributes:
        command: Its command; (): code within this process.
        exitcode: Its exit status; negative: the signal that killed it; None: not known.
        seconds: How long it ran, or was watched.
        deeds: What its ledger tells.
        simulated: Whether the driver that it saw was the phantom.
        running: What descends from it and ran on when this was told: process and command.

    """

    command: tuple[str, ...]
    exitcode: int | None
    seconds: float
    deeds: Deeds
    simulated: bool
    running: tuple[tuple[int, str], ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether nothing of it is an error, none is lost, and enough was watched to say so."""
        captures = self.deeds.captures
        found = self.deeds.findings or captures.errors
        unknown = self.deeds.lost or captures.broken or not self.deeds.judged
        return not found and not unknown

    def lines(self, *, follows: str = "") -> list[str]:
        """Tell it.

        Args:
            follows: The file, as ``file_of_stderr`` names it, in which that follows what the
                program has written: an error that ended a process has told its story there
                already. "": it stands by itself.

        """
        return [
            TITLE,
            *self._how_it_ended(),
            *self._errors(self._told_by_errors(follows) if follows else {}),
            *map(plain, self.deeds.captures.error_lines()),
            *self._rest(),
            *map(plain, self.deeds.captures.other_lines()),
            *self._unseen(),
        ]

    def text(self, *, follows: str = "") -> str:
        """Tell it, as one text that ends in a line break; ``follows`` as for ``lines``."""
        return "\n".join([*self.lines(follows=follows), ""])

    def _told_by_errors(self, file: str) -> dict[str, str]:
        """Return the culprits of which an error has told that ended a process, and where it did."""
        history = self.deeds.history
        return {
            found.culprit(history): f"the error that ended process {found.record['pid']}"
            for found in self.deeds.findings
            if history.is_printed(found.id, file)
        }

    def _how_it_ended(self) -> list[str]:
        if not self.command:
            return []
        words = plain(shlex.join(self.command))
        return [f"{words}: {exit_status.describe(self.exitcode)} after {self.seconds:.1f} s"]

    def _errors(self, told: Mapping[str, str]) -> list[str]:
        if not self.deeds.findings:
            return []
        story = tell(
            list(self.deeds.findings), self.deeds.history, simulated=self.simulated, told=told
        )
        return ["", *story.split("\n"), ""]

    def _rest(self) -> list[str]:
        """Tell what is no error: touches, forks of an initialized process, and their number."""
        deeds = self.deeds
        initialized = initialized_forks(deeds.forks)
        lines: list[str] = []
        first = next((touch for touch in deeds.touches if not touch.poisoned), None)
        if first is not None and not deeds.findings:
            lines += [
                "CUDA was initialized by",
                *indent(touch_lines(first, advice=bool(initialized))),
            ]
            if not initialized and not poisoned_processes(deeds.history):
                lines.append(_NO_FORK)
        told = {first.where} if first is not None and not deeds.findings else self._told()
        others = _unique(headline(touch) for touch in deeds.touches if touch.where not in told)
        lines += places_lines("also touched by", others)
        lines += places_lines(
            "forked while CUDA was initialized (such a child can never use CUDA)",
            _unique(f"{fork.place}: {fork.fate}" for fork in initialized),
        )
        running = [f"{pid} {plain(command)}" for pid, command in self.running]
        lines += places_lines("still running, and what it does from now on is not seen", running)
        return [*lines, self._numbers()]

    def _told(self) -> set[str]:
        """Return the lines that the stories of the errors name."""
        lines = {found.culprit(self.deeds.history) for found in self.deeds.findings}
        return lines | {touch.where for touch in self.deeds.touches if touch.poisoned}

    def _numbers(self) -> str:
        deeds = self.deeds
        processes = count_of(len(deeds.processes), "Python process", "Python processes")
        if not deeds.touches and not initialized_forks(deeds.forks):
            seen = "no touch of CUDA was seen" if deeds.processes else "nothing was watched"
            return f"{seen}; watched: {processes}"
        poisoned = sum(touch.poisoned for touch in deeds.touches)
        forks = len(initialized_forks(deeds.forks))
        return (
            f"touches: {len(deeds.touches)}, forks while initialized: {forks}, poisoned children: "
            f"{len(poisoned_processes(deeds.history))}, of which touched CUDA: {poisoned}; "
            f"watched: {processes}"
        )

    def _unseen(self) -> list[str]:
        return [f"not observable: {plain(words)}" for words in self.deeds.unseen]

    def as_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        deeds = self.deeds
        return {
            **head("run"),
            "version": VERSION,
            "command": [plain(word) for word in self.command],
            "exit_status": self.exitcode,
            "seconds": round(self.seconds, 3),
            "good": self.is_good,
            "simulated_driver": self.simulated,
            "findings": [
                found.plain(deeds.history, simulated=self.simulated) for found in deeds.findings
            ],
            "touches": [plain_touch(touch) for touch in deeds.touches],
            "forks": [
                {
                    "process": fork.pid,
                    "call": fork.api,
                    "verdict": fork.verdict,
                    "place": fork.place,
                    "stack": plain_stack(fork.frames),
                }
                for fork in initialized_forks(deeds.forks)
            ],
            "processes": {str(pid): command for pid, command in deeds.processes.items()},
            "running": [{"process": pid, "command": plain(text)} for pid, text in self.running],
            "captures": self.deeds.captures.as_plain(),
            "not_observable": [plain(words) for words in deeds.unseen],
        }


def initialized_forks(forks: Iterable[Fork]) -> list[Fork]:
    """Return the forks that were made, or refused, while CUDA was initialized."""
    return [fork for fork in forks if fork.verdict != "clean"]


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


def places_lines(title: str, places: list[str]) -> list[str]:
    """Return a title and places below it, not all where they are many; nothing if there is none."""
    if not places:
        return []
    lines = [f"{title}:", *(f"    {place}" for place in places[:_MOST_PLACES])]
    left = len(places) - _MOST_PLACES
    return [*lines, f"    ... and {left} more"] if left > 0 else lines
