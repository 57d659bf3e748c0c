"""Reads a pasted log: where its known messages are, and the frames of the traceback before each.

A log is read line by line and only what leads up to a message is kept, so its size does not matter.
Lines may bear anything before them, as the prefix of a worker or of a logger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_cudafork.compat.unpatched import re
from pytest_cudafork.explain.messages import Message, message_in
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.touch import Frame

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:, in (?P<name>[^\s|]+))?')
_PYTEST_FRAME = re.compile(r"^(?:E\s+)?(?P<file>[^\s:\"]+\.py):(?P<line>\d{1,9}): in (?P<name>\S+)")
_ENDS = re.compile(r"(?:^|\s)[\w.]*(?:Error|Exception)(?::|$)")
"""The last line of a traceback: the error that the frames before it have raised."""
_BEGINS = "Traceback (most recent call last)"
_MOST_LINES = 600
_LONGEST = 2000
"""Characters of a line that are looked at."""


@dataclass
class Hit:
    """A known message in a log.

    Attributes:
        message: Which one.
        line: The number of its first line.
        text: That line.
        frames: The traceback that ends in it, innermost first; (): it has none.
        times: How often the message is there.

    """

    message: Message
    line: int
    text: str
    frames: tuple[Frame, ...]
    times: int = field(default=1)


def read(lines: Iterable[str]) -> list[Hit]:
    """Return the known messages of a log, each once, in order of their first line.

    Of one that is there several times, the first traceback is kept.
    """
    before: deque[str] = deque(maxlen=_MOST_LINES)
    hits: dict[Message, Hit] = {}
    for number, whole in enumerate(lines, start=1):
        line = whole[:_LONGEST]
        message = message_in(line)
        if message is None:
            before.append(line)
            continue
        hit = hits.get(message)
        if hit is None:
            frames = _frames(before)
            hits[message] = Hit(message, number, plain(line.strip()), frames)
        else:
            hit.times += 1
            hit.frames = hit.frames or _frames(before)
        before.append(line)
    return list(hits.values())


def _frames(lines: Iterable[str]) -> tuple[Frame, ...]:
    """Return the frames of the last traceback in some lines, innermost first."""
    frames: list[Frame] = []
    for line in lines:
        if _BEGINS in line or _ENDS.search(line.rstrip()):
            frames = []
        match = _FRAME.search(line) or _PYTEST_FRAME.search(line)
        if match is not None:
            name = match["name"] or "<module>"
            frames.append(Frame(plain(match["file"]), int(match["line"]), plain(name)))
    return tuple(reversed(frames))
