"""One finding of the doctor: what is so, what follows from it, and what to do about it."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pytest_cudafork.observe.story.plain_text import plain


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """What the doctor says of one subject.

    Attributes:
        level: OK: nothing to do; NOTE: worth knowing; WARNING: verdicts here may differ from those
            elsewhere, or something was not seen; PROBLEM: something cannot work as it is.
        subject: What it is about, such as "torch" or "CUDA_VISIBLE_DEVICES".
        text: What is so.
        consequence: What follows from it.
        fix: What to do about it; with the level OK there is none.

    """

    level: Level
    subject: str
    text: str
    consequence: str = ""
    fix: str = ""

    def lines(self) -> list[str]:
        """The finding as it is printed."""
        lines = [f"{self.level.value}: {self.subject}: {plain(self.text)}"]
        if self.consequence:
            lines.append(f"    so: {plain(self.consequence)}")
        if self.fix:
            lines.append(f"    fix: {plain(self.fix)}")
        return lines

    def to_plain(self) -> dict[str, str]:
        """The finding as texts."""
        return {**self._asdict(), "level": self.level.value}


def ok(subject: str, text: str, consequence: str = "") -> Finding:
    """Make a finding that asks for nothing."""
    return Finding(Level.OK, subject, text, consequence)


def note(subject: str, text: str, consequence: str, fix: str = "") -> Finding:
    """Make a finding that is worth knowing."""
    return Finding(Level.NOTE, subject, text, consequence, fix)


def warning(subject: str, text: str, consequence: str, fix: str) -> Finding:
    """Make a finding by which verdicts may be others here than elsewhere."""
    return Finding(Level.WARNING, subject, text, consequence, fix)


def problem(subject: str, text: str, consequence: str, fix: str) -> Finding:
    """Make a finding of what cannot work as it is."""
    return Finding(Level.PROBLEM, subject, text, consequence, fix)
