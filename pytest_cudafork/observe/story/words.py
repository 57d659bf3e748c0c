"""The words in which touches and forks are told, laid out in lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.observe.base.other_hosts import process_words
from pytest_cudafork.observe.story.advice import advise, kind_of_line, what_the_line_is
from pytest_cudafork.observe.story.paths import location
from pytest_cudafork.observe.story.source import source_line
from pytest_cudafork.observe.story.touch import MACHINERY, Frame, Touch, culprit_of, way_of
from pytest_cudafork.settings import environment

_MOST_CALLS = 6


def headline(touch: Touch) -> str:
    """One line: where, and what kind of code."""
    culprit = touch.culprit
    if culprit is None:
        library = os.path.basename(touch.library) or "unknown code"
        return f"{touch.entry} called by {library} (no Python stack could be had)"
    return f"{location(culprit)}: {what_the_line_is(touch)}"


def place_of(frames: Sequence[Frame]) -> str:
    """``path:line`` of the line to change in a stack."""
    culprit = culprit_of(frames)
    return location(culprit) if culprit is not None else "unknown code"


def initialized_at(touch: Touch | None) -> str:
    """Say in a few words where CUDA was initialized, for the first line of a story."""
    if touch is None:
        return "CUDA was initialized by something that was not seen"
    if touch.culprit is None:
        return f"CUDA was initialized by {headline(touch)}"
    return f"CUDA was initialized at {location(touch.culprit)} ({kind_of_line(touch)})"


def when_of(touch: Touch) -> str:
    """In which process and phase the touch happened."""
    if touch.test:
        phase = f"in {touch.test}"
    elif touch.phase.startswith("collect"):
        phase = f"while {touch.phase.removeprefix('collect').strip() or 'the suite'} was collected"
    elif touch.phase == environment.PROGRAM:
        return process_words(touch.pid)
    elif touch.phase:
        phase = "while pytest started (conftest or plugin)"
    else:
        phase = "outside any test"
    return f"{process_words(touch.pid)}, {phase}"


def touch_lines(
    touch: Touch, *, advice: bool = True, own: str = "", forks: bool = True
) -> list[str]:
    """Tell one touch: where, source line, through which calls and imports, what to do.

    ``own`` is an installed package that the reader can change; ``forks`` says that forks after the
    touch are what is wrong, and not the touch itself.
    """
    lines = [headline(touch)]
    culprit = touch.culprit
    if culprit is not None:
        source = source_line(culprit.filename, culprit.lineno)
        if source:
            lines.append(f"    > {source}")
        lines.extend(indent(nobodys_line(touch.frames), "  "))
    lines.append(f"  {_entry(touch)} in {when_of(touch)}")
    lines.extend(_calls(touch))
    lines.extend(_callers(touch))
    lines.extend(_imports(way_of(touch.frames)))
    if advice:
        lines.append("  what to do:")
        lines.extend(f"    - {sentence}" for sentence in advise(touch, own, forks=forks))
    return lines


def own_lines(touch: Touch) -> list[str]:
    """What a touch has of its own beside others of the same line: its test and its callers."""
    if not touch.test or touch.at_import:
        return []
    return [f"  in {when_of(touch)}", *_callers(touch)]


def _entry(touch: Touch) -> str:
    library = os.path.basename(touch.library)
    caller = f" (called by {library})" if library else ""
    return f"touched CUDA by {touch.entry}{caller}"


def _calls(touch: Touch) -> list[str]:
    """The calls between the culprit and the driver, outermost first, the middle left out."""
    culprit = touch.culprit
    if culprit is None or culprit not in touch.frames:
        return []
    inner = [f for f in touch.frames[: touch.frames.index(culprit)] if not f.is_import_machinery]
    inner.reverse()
    if not inner:
        return []
    told = [f"    {location(frame)} in {frame.name}" for frame in inner]
    if len(told) > _MOST_CALLS:
        half = _MOST_CALLS // 2
        told[half:-half] = [f"    ... {len(told) - 2 * half} more calls ..."]
    return ["  which called:", *told]


def _callers(touch: Touch) -> list[str]:
    """Who called a culprit that is a plain call, nearest first, up to the test machinery."""
    culprit = touch.culprit
    if touch.at_import or culprit is None or culprit not in touch.frames:
        return []
    told: list[str] = []
    for frame in touch.frames[touch.frames.index(culprit) + 1 :]:
        if frame.package in MACHINERY:
            break
        if frame.package != "<stdlib>" and not frame.is_import_machinery:
            told.append(f"    {location(frame)} in {frame.name}")
    return ["  called from:", *told[:_MOST_CALLS]] if told else []


def _imports(way: Sequence[tuple[Frame, bool]]) -> list[str]:
    if len(way) < 2:
        return []
    lines = ["  reached through:" if any(runs for _, runs in way) else "  imported through:"]
    for frame, _ in way[:-1]:
        source = source_line(frame.filename, frame.lineno)
        lines.append(f"    {location(frame)}  {source}".rstrip())
    return lines


def fork_place(frames: Sequence[Frame]) -> str:
    """Where it forks: the innermost frame outside multiprocessing and the like, in one line."""
    culprit = culprit_of(frames)
    return "unknown code" if culprit is None else f"{location(culprit)} in {culprit.name}"


def fork_line(frames: Sequence[Frame]) -> str:
    """The same, with the source line below it."""
    culprit = culprit_of(frames)
    source = "" if culprit is None else source_line(culprit.filename, culprit.lineno)
    return fork_place(frames) + (f"\n    > {source}" if source else "")


def nobodys_line(frames: Sequence[Frame]) -> list[str]:
    """Say of a stack that it has no line to change, if the culprit is one of pytest's own."""
    culprit = culprit_of(frames)
    if culprit is None or culprit.package not in MACHINERY:
        return []
    return [
        "no line of yours is in the stack: pytest calls a function that was registered with it (a "
        "finalizer, a fixture, a hook), and that has no line in Python"
    ]


def indent(lines: Iterable[str], by: str = "    ") -> list[str]:
    """The lines, each moved to the right; lines that hold line breaks are split first."""
    return [f"{by}{part}" for line in lines for part in line.split("\n")]
