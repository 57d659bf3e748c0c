"""What the demo prints: plain text of at most 100 columns, in color on a terminal only."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from _pytest._io import TerminalWriter  # pytest's own: knows NO_COLOR, FORCE_COLOR and terminals

from demo.cases import NEWCOMER, Section
from demo.outcome import Result, other_release, summary, verdict_of
from demo.session import Place, version_of
from pytest_cudafork.settings.real_driver import has_real_driver

WIDTH = 100
_NAME = 42
_LEVEL = 8
_GPU = 9
_MOST_PLACES = 3
_TAIL = 12
_ALARMS = frozenset({"child poisoned", "fork refused", "touches"})
_DISTRIBUTIONS = ("pytest", "torch", "triton", "nvidia-cutlass-dsl", "apache-tvm-ffi")


class Page:
    """Prints the parts of the page as they are ready."""

    def __init__(self, file: TextIO) -> None:
        self._terminal = TerminalWriter(file)

    def title(self) -> None:
        """Say what is installed here, and which driver there is."""
        version = version_of("pytest-cudafork") or "from a checkout"
        self._terminal.line(f"pytest-cudafork {version}: who initializes CUDA?", bold=True)
        found = [f"{name} {version_of(name) or 'missing'}" for name in _DISTRIBUTIONS]
        driver = (
            "This machine has an NVIDIA driver; where a row says phantom, it is not used."
            if has_real_driver()
            else "No NVIDIA driver here: a phantom driver stands in and records who calls it."
        )
        self._text(", ".join([f"Python {platform.python_version()}", *found]))
        self._text(driver)

    def section(self, section: Section) -> None:
        """Begin a section."""
        self._terminal.line()
        self._terminal.line(section.title, bold=True)
        self._text(section.text)
        if section is not NEWCOMER:
            self._terminal.line()
            self._terminal.line(row("session", "level", "GPU shown", "outcome"))
            self._terminal.line(row("-" * (_NAME - 2), "-" * 6, "-" * 9, "-" * 14))

    def result(self, result: Result) -> None:
        """Print one session."""
        if result.case.section is NEWCOMER:
            self._newcomer(result)
        else:
            self._row(result)
        note = other_release(result.case.needs) or result.case.note
        if note and not result.seen.missing:
            self._text(note, "    ")
        if result.seen.missing:
            self._text(result.seen.missing, "    ")
        for limit in result.seen.limits:
            self._text(f"not observable: {limit}", "    ")
        if result.differs:
            self._terminal.line(f"    NOT AS EXPECTED: {result.difference}", red=True, bold=True)
            for line in result.seen.output.rstrip().splitlines()[-_TAIL:]:
                self._terminal.line(f"    | {line}".rstrip())
        self._terminal.flush()

    def _row(self, result: Result) -> None:
        case, verdict = result.case, verdict_of(result.seen)
        text = row(case.name, case.level, gpu_shown(case.device), "")
        self._terminal.write(text)
        self._terminal.line(verdict, **_markup(verdict))
        places = result.seen.places
        for place in places[:_MOST_PLACES]:
            for line in place_lines(place):
                self._terminal.line(f"    {line}")
        if len(places) > _MOST_PLACES:
            self._terminal.line(f"    ... and {len(places) - _MOST_PLACES} more lines")

    def _newcomer(self, result: Result) -> None:
        source = result.case.source
        if isinstance(source, Path):
            self._terminal.line()
            for number, line in enumerate(_only_file(source).splitlines(), start=1):
                self._terminal.line(f"  {number:2} | {line}".rstrip())
        self._terminal.line()
        self._terminal.line(f"  $ {result.case.name}")
        for line in failure_lines(result.seen.output):
            self._terminal.line(f"  {line}".rstrip())

    def verdict(self, results: Sequence[Result], seconds: float) -> None:
        """Print the last line."""
        good = not any(result.differs for result in results)
        self._terminal.line()
        self._terminal.line(
            f"{summary(results)} ({seconds:.0f} s)", bold=True, green=good, red=not good
        )

    def _text(self, text: str, by: str = "") -> None:
        for line in _wrap(text, WIDTH, by):
            self._terminal.line(line)


def row(name: str, level: str, gpu: str, outcome: str) -> str:
    """Return one line of a table."""
    return f"{name:{_NAME}}{level:{_LEVEL}}{gpu:{_GPU + 2}}{outcome}"


def gpu_shown(device: str) -> str:
    """Return the GPU that a session sees, in a word."""
    if device == "auto":
        return "real" if has_real_driver() else "none"
    return device.partition(":")[2] or "none"


def place_lines(place: Place) -> list[str]:
    """Tell one line that touched CUDA."""
    lines = [cut_left(place.where, WIDTH - 4)]
    if place.source:
        lines.append(cut_right(f"  > {place.source}", WIDTH - 4))
    words = f"calls {place.entry}{place.consequence or f' ({place.what})'}"
    return [*lines, *_wrap(words, WIDTH - 4, "  ")]


def failure_lines(output: str) -> list[str]:
    """Return the message of the failure, without the stack above it, folded to the page."""
    lines = []
    for line in output.splitlines():
        if line.startswith("E "):
            text = line[1:].strip()
            by = " " * (len(line[1:]) - len(line[1:].lstrip()) - 6)
            more = f"{by}  " if text.startswith("- ") else by
            lines += _wrap(text, WIDTH - 2, f"E {by}", f"E {more}") or ["E"]
    return lines


def _wrap(text: str, width: int, first: str = "", more: str | None = None) -> list[str]:
    """Fold a text; names with hyphens stay whole."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if more is None else more,
        break_on_hyphens=False,
    )


def cut_left(text: str, width: int) -> str:
    """Shorten a path, keeping its end."""
    return text if len(text) <= width else "..." + text[len(text) - width + 3 :]


def cut_right(text: str, width: int) -> str:
    """Shorten a source line, keeping its beginning."""
    return text if len(text) <= width else text[: width - 3] + "..."


def _markup(verdict: str) -> dict[str, bool]:
    if verdict in _ALARMS:
        return {"red": True}
    return {"green": True} if verdict in ("clean", "passes") else {"yellow": True}


def _only_file(folder: Path) -> str:
    (path,) = folder.glob("test_*.py")
    return path.read_text(encoding="utf-8").rstrip()
