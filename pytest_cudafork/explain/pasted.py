"""Reads a pasted log: where its known messages are, and the frames of the traceback before each.

A log is read line by line and only what leads up to a message is kept, so its size does not matter.
Lines may bear anything before them, as the prefix of a worker or of a logger, and colors. A message
may be broken into several lines, as some are written and as terminals break them, or cut.
Lines of several processes may lie between each other, where their prefixes say whose they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_cudafork.compat.unpatched import re
from pytest_cudafork.explain.broken import Beginning, beginnings_in, cut_in, goes_on
from pytest_cudafork.explain.messages import MESSAGES, Message, message_in
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.touch import Frame

_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:, in (?P<name>[^\s|"\',\\]+)|(?!\d| in ))'
)
"""Without a name it is a syntax error; " in" without a comma is faulthandler's, of no error."""
_OTHER_FRAMES = (
    re.compile(  # pytest's
        r"^(?:E\s+)?(?P<file>[^\s:\"]+\.py):(?P<line>\d{1,9}): in (?P<name>\S+)"
    ),
    re.compile(  # Rich's, in a box
        r"[│|]\s+(?P<file>[^\s:\"│|]+\.py):(?P<line>\d{1,9}) in (?P<name>[^\s│|]+)"
    ),
    re.compile(  # IPython's
        r"\bFile (?P<file>[^\s:\"]+\.py):(?P<line>\d{1,9})(?:, in (?P<name>[^\s(]+))?"
    ),
    re.compile(  # IPython's, of the notebook
        r"\b(?P<file>Cell In ?\[\d+\]), line (?P<line>\d{1,9})(?:, in (?P<name>[^\s(]+))?"
    ),
)
_ENDS = re.compile(
    r"(?:^|[\s:>\]])(?:[\w.]*(?:Error|Exception|ExceptionGroup)|KeyboardInterrupt|SystemExit"
    r"|GeneratorExit|StopIteration|StopAsyncIteration)(?::|$)"
    r"|^[\s|]*(?:[a-z_]\w*\.)+[A-Z]\w*(?::|$)"  # queue.Empty, requests.exceptions.Timeout
)
"""The last line of a traceback: the error that the frames before it have raised."""
_CONTROL = re.compile(r"(?:\x1b|\^\[|␛)(?:\[[0-9:;<=>?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""What a terminal takes for colors, links and titles, and does not show; ``less`` and others write
the first character of it as two."""
_ESCAPED = re.compile(r'File \\+"|\(most recent call last\):\\+n|\\u00[0-7][0-9a-fA-F]')
"""What a traceback within a JSON or Python literal has: its quotes and line breaks are escaped, by
some writers (Go's, and so docker's) also the brackets of ``<module>``, and the codes of colors."""
_ESCAPED_BREAK = re.compile(r"\\+n")
_ESCAPED_QUOTE = re.compile(r"\\+([\"'])")
_ESCAPED_CHARACTERS = re.compile(r"(?:\\+u[0-9a-fA-F]{4})+")
_HEX_DIGITS = 4
_WRITER = re.compile(
    r"\((?P<process>[^()]*\bpid=\d+[^()]*)\)"  # vLLM, Ray
    r"|\[(?P<rank>(?:rank|default|gw)\s?\d+)\]"  # torch, torchrun, pytest-xdist
    r"|^(?P<container>[\w.-]+)\s*\| "  # docker compose
    r"|\[(?P<pod>pod/[^\]\s]+)\]"  # kubectl logs --prefix
    r"|^(?:[^\s\[]+ +){1,4}?(?P<service>[\w.@/-]+\[\d+\]): "  # journald, syslog
    r"|\[(?P<pid>(?:pid|PID)[ :=]?\d+)\]"  # what loggers are told to write
    r"|\[(?:[A-Z]+/)?(?P<child>\w*(?:Process|PoolWorker)-\d+(?::\d+)*)\]"  # multiprocessing
)
_PREFIX = 120
"""Characters at the start of a line in which its writer is looked for."""
_TIME = re.compile(
    r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
)
"""What differs between the prefixes of a process, though they are the same."""
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_MOST_WRITERS = 200
_BEGINS = "Traceback (most recent call last)"
_BEGINS_AFTER = re.compile(r"(?:(?:Exception Group|Original) )?" + re.escape(_BEGINS))
"""The same with what belongs to it; what stands before is a prefix."""
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


@dataclass
class _Open:
    """A message that has begun and is not complete.

    Attributes:
        beginning: The message, and what of it is to follow.
        line: The number of the line it began in.
        text: Its lines so far.
        frames: The traceback that ends in it, innermost first.

    """

    beginning: Beginning
    line: int
    text: str
    frames: tuple[Frame, ...]


def read(lines: Iterable[str]) -> list[Hit]:
    """Return the known messages of a log, each once, in order of their first line.

    Of one that is there several times, the first traceback is kept. One of which only the beginning
    is there counts where the whole is nowhere.
    """
    writers = _Writers()
    hits: dict[Message, Hit] = {}
    cut: dict[tuple[Message, ...], _Open] = {}
    number, line = 0, "\n"
    for number, line in _numbered(lines):
        writer = writers.of(line)
        begun = writers.take_begun(writer)
        complete, begun = _go_on(begun, writer.without_prefix(line) if begun else line)
        message, beginnings = message_in(line), beginnings_in(line)
        frames = writers.frames(writer, number) if message is not None or beginnings else ()
        if message is not None:
            complete.append(_Open(Beginning(message, ""), number, line.strip(), frames))
        if complete:
            # Of several that end in a line, the most particular counts.
            _add(hits, min(complete, key=lambda each: MESSAGES.index(each.beginning.message)))
            begun = []
        elif not begun and (messages := cut_in(line)):
            _keep(cut, messages, number, line, writers.frames(writer, number))
        writer.begun = begun + [_Open(each, number, line.strip(), frames) for each in beginnings]
        writer.add(number, line)
    if not line.endswith("\n") and (messages := cut_in(line, is_last=True)):
        _keep(cut, messages, number, line, ())
    for messages, found in cut.items():
        if not any(message in hits for message in messages):
            _add(hits, found)
    return sorted(hits.values(), key=lambda hit: hit.line)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield what is read of each line with its number; lines within a literal have that of it."""
    for number, whole in enumerate(lines, start=1):
        line = _CONTROL.sub("", whole)
        if not _ESCAPED.search(line):
            yield number, line[:_LONGEST]
            continue
        for part in _ESCAPED_BREAK.split(line):
            text = _ESCAPED_QUOTE.sub(r"\1", _ESCAPED_CHARACTERS.sub(_characters, part))
            yield number, _CONTROL.sub("", text)[:_LONGEST]


def _characters(escaped: re.Match[str]) -> str:
    """Return what JSON has written as four digits each, two of them for the rarer characters."""
    codes = [code[:_HEX_DIGITS] for code in escaped[0].split("u")[1:]]
    text = "".join(chr(int(code, 16)) for code in codes)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _go_on(begun: Iterable[_Open], line: str) -> tuple[list[_Open], list[_Open]]:
    """Return which messages a line completes, and which it continues."""
    complete: list[_Open] = []
    still: list[_Open] = []
    for each in begun:
        after = goes_on(each.beginning, line)
        if after is None:
            continue
        text = f"{each.text} {line.strip()}"
        if after.rest:
            still.append(_Open(after, each.line, text, each.frames))
        else:
            complete.append(_Open(after, each.line, text, each.frames))
    return complete, still


def _keep(
    cut: dict[tuple[Message, ...], _Open],
    messages: tuple[Message, ...],
    number: int,
    line: str,
    frames: tuple[Frame, ...],
) -> None:
    """Keep the first line that holds no more than the beginning of these messages."""
    cut.setdefault(messages, _Open(Beginning(messages[0], ""), number, line.strip(), frames))


def _add(hits: dict[Message, Hit], found: _Open) -> None:
    """Count a message."""
    message = found.beginning.message
    hit = hits.get(message)
    if hit is None:
        hits[message] = Hit(message, found.line, plain(found.text), found.frames)
    else:
        hit.times += 1
        hit.frames = hit.frames or found.frames


class _Line(NamedTuple):
    """What a line is in a traceback.

    Attributes:
        begins: Whether it is the first one.
        ends: Whether it is the last one.
        goes_on: Whether the text of the error that it names may begin in the next line.
        frame: The frame that it names.

    """

    begins: bool
    ends: bool
    goes_on: bool
    frame: Frame | None

    @classmethod
    def of(cls, line: str) -> _Line:
        """Read a line."""
        patterns = (_FRAME, *_OTHER_FRAMES)
        match = next(filter(None, (pattern.search(line) for pattern in patterns)), None)
        frame = None
        if match is not None:
            name = match["name"] or "<module>"
            frame = Frame(plain(match["file"]), int(match["line"]), plain(name))
        text = line.rstrip()
        ends = _ENDS.search(text) is not None
        return cls(_BEGINS in line, ends, ends and text.endswith(":"), frame)


class _Traceback:
    """The last traceback in the lines so far."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, Frame]] = deque(maxlen=_MOST_LINES)
        self._has_ended = False
        self.has_any = False
        """Whether there was a frame, of whatever traceback."""

    def add(self, number: int, line: _Line) -> None:
        """Take the next line."""
        if self._has_ended or line.begins or line.ends:
            # Of an error whose text begins in the next line, that line belongs to it.
            self._has_ended = line.goes_on and not self._has_ended
            if not self._has_ended:
                self._frames.clear()
        if line.frame is not None:
            self._frames.append((number, line.frame))
            self.has_any = True

    def frames(self, number: int) -> tuple[Frame, ...]:
        """Return its frames, innermost first, as seen from the line with this number."""
        near = [frame for line, frame in self._frames if line >= number - _MOST_LINES]
        return tuple(reversed(near))


class _Writer:
    """What one process of a log has written so far, as far as it is kept.

    ``outer`` is that of the lines with less of its prefix: those of its container, say.
    """

    def __init__(self, outer: _Writer | None = None, prefix: str = "") -> None:
        self.outer = outer
        self.prefix = prefix
        """What stood before the beginning of a traceback, if it is known by that."""
        self.traceback = _Traceback()
        self.mixed = _Traceback()
        """The same with the lines of those that are known by what stood before a traceback: such a
        prefix may be another one in the next line of the same process."""
        self.begun: list[_Open] = []
        """The messages that its last line has begun."""

    def add(self, number: int, line: str) -> None:
        """Read its next line."""
        read = _Line.of(line)
        self.traceback.add(number, read)
        self.mixed.add(number, read)
        if self.prefix and self.outer is not None:
            self.outer.mixed.add(number, read)

    def without_prefix(self, line: str) -> str:
        """Return a line of it without the prefix by which it is known."""
        return _TIME.sub("", line).removeprefix(self.prefix) if self.prefix else line


class _Writers:
    """The processes whose lines a log holds, by their prefixes; lines without one are another's.

    A line may have several, as of a container and of a process in it. A prefix that is none of
    those known (of ``srun -l``, ``mpirun``, SGLang) is what stands before the first line of a
    traceback: lines that begin like that are of the same process.
    """

    def __init__(self) -> None:
        self._nameless = _Writer()
        self._named: dict[tuple[str, ...], _Writer] = {}
        self._by_traceback: dict[str, _Writer] = {}
        self._lengths: list[int] = []
        """Those of its prefixes, the longest first."""
        self._last = self._nameless

    def of(self, line: str) -> _Writer:
        """Return whose line this is."""
        writer = self._of_known_prefix(line)
        begins = _BEGINS in line[:_PREFIX]
        if not begins and not self._lengths:  # as in nearly all logs
            return writer
        beginning = _TIME.sub("", line[:_PREFIX])
        if begins and (match := _BEGINS_AFTER.search(beginning)) is not None:
            prefix = beginning[: match.start()]
            if _LETTER_OR_DIGIT.search(_WRITER.sub("", prefix)):
                self._keep(prefix, writer)
        for length in self._lengths:
            found = self._by_traceback.get(beginning[:length])
            if found is not None and found.outer is writer:
                return found
        return writer

    def _keep(self, prefix: str, outer: _Writer) -> None:
        """Keep what stands before the first line of a traceback."""
        known = self._by_traceback.pop(prefix, None)
        if known is None or known.outer is not outer:
            known = _Writer(outer, prefix)
        self._by_traceback[prefix] = known
        if len(self._by_traceback) > _MOST_WRITERS:
            del self._by_traceback[next(iter(self._by_traceback))]
        if len(prefix) not in self._lengths:
            self._lengths = sorted({len(each) for each in self._by_traceback}, reverse=True)

    def _of_known_prefix(self, line: str) -> _Writer:
        writer = self._nameless
        name: tuple[str, ...] = ()
        for found in _WRITER.finditer(line[:_PREFIX]):
            name = (*name, next(filter(None, found.groups())))
            known = self._named.pop(name, None)
            writer = known or _Writer(writer)
            self._named[name] = writer  # the last one that wrote is the last here
            if len(self._named) > _MOST_WRITERS:
                del self._named[next(iter(self._named))]
        return writer

    def take_begun(self, writer: _Writer) -> list[_Open]:
        """Return the messages that a line of this writer may continue.

        A line that a terminal or logger has broken has its prefix in its first part.
        """
        begun, writer.begun = writer.begun, []
        last, self._last = self._last, writer
        around = writer.outer if writer.prefix and not last.prefix else writer
        if last.outer is around or (around is self._nameless and last is not around):
            begun = begun + last.begun
        return begun

    def frames(self, writer: _Writer, number: int) -> tuple[Frame, ...]:
        """Return the frames of the traceback that ends in a line of this writer.

        A logger may put its prefix before the first line alone, and no frame has it then.
        """
        while writer.outer is not None and not writer.mixed.has_any:
            writer = writer.outer
        return writer.traceback.frames(number) or writer.mixed.frames(number)
