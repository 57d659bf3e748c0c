"""Owns what the terminal shows of a checked session: the header line and the last section.

It does not know how the facts were gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_cudafork.observe.render import headline, indent, touch_lines
from pytest_cudafork.observe.stories import History
from pytest_cudafork.observe.touch import Touch
from pytest_cudafork.options import Settings

if TYPE_CHECKING:
    import pytest

    from pytest_cudafork.check import Check
    from pytest_cudafork.findings import Finding
    from pytest_cudafork.observe.observer import Observer

TITLE = "CUDA and fork"
_MOST_PLACES = 10


@dataclass(frozen=True)
class Counts:
    """The numbers of the last section."""

    touches: int
    at_start: int
    at_collection: int
    in_tests: int
    guarded: int
    allowed: int
    poisoned: int

    @classmethod
    def of(cls, history: History) -> Counts:
        """Count a ledger."""
        forks = [str(r.get("verdict")) for r in history.records if r["k"] == "fork"]
        phases = [_phase(touch) for touch in history.touches]
        return cls(
            touches=len(history.touches),
            at_start=phases.count("start"),
            at_collection=phases.count("collection"),
            in_tests=phases.count("test"),
            guarded=forks.count("guarded"),
            allowed=forks.count("allowed") + forks.count("watched"),
            poisoned=sum(touch.poisoned for touch in history.touches),
        )

    def line(self) -> str:
        """The numbers as one line."""
        where = (
            f" ({self.at_start} at start-up, {self.at_collection} at import or collection, "
            f"{self.in_tests} in tests)"
            if self.touches
            else ""
        )
        return (
            f"touches: {self.touches}{where}, forks guarded: {self.guarded}, "
            f"forks allowed while initialized: {self.allowed}, poisoned touches: {self.poisoned}"
        )


def _phase(touch: Touch) -> str:
    if touch.test:
        return "test"
    return "collection" if touch.phase.startswith("collect") else "start"


def header(settings: Settings, observer: Observer) -> list[str]:
    """What is checked and with which eyes, in one line, and a line for each thing not seen."""
    device = observer.settings.device
    words = {"real": "real", "none": "none", "absent": "phantom (no GPU)"}
    device_words = words.get(device, f"phantom ({device})")
    witnesses = observer.witnesses
    parts = [
        f"level {settings.level.value}",
        f"device {device_words}",
        f"witness {witnesses.words if witnesses else 'none'}",
        f"start method {_start_method()}",
        f"torch {_torch_version()}",
        f"driver {_driver_version()}",
    ]
    limits = [f"cuda-fork: not observable: {limit}" for limit in limits_of(observer)]
    return ["cuda-fork: " + ", ".join(parts), *limits]


def limits_of(observer: Observer) -> tuple[str, ...]:
    """What this session cannot see, in words."""
    early = (
        (
            "CUDA was already initialized when the watch began; by whom is not known (load the "
            "plugin earlier: -p pytest_cudafork.plugin)",
        )
        if observer.early
        else ()
    )
    return early + (observer.witnesses.limits if observer.witnesses else ())


def _start_method() -> str:
    import multiprocessing

    return multiprocessing.get_start_method(allow_none=True) or (
        f"{multiprocessing.get_all_start_methods()[0]} (default)"
    )


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def _driver_version() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as file:
            words = file.readline().split()
    except OSError:
        return "none"
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")


def write_summary(
    terminal: pytest.TerminalReporter, settings: Settings, observer: Observer, check: Check
) -> None:
    """Write the last section."""
    records = observer.records()
    history = History(records)
    counts = Counts.of(history)
    unreported = check.unreported(records)
    bad = bool(counts.guarded or counts.poisoned or unreported)
    terminal.section(TITLE, red=bad, green=not bad, bold=bad)
    for line in summary_lines(history, advice=not bad):
        terminal.write_line(line)
    for found in unreported:
        terminal.write_line(f"ERROR: {_when(found)}, too late to fail a test:", red=True)
        story = found.story(history, simulated=observer.simulated)
        for line in indent([story], "  "):
            terminal.write_line(line)
    limits = limits_of(observer)
    for limit in limits:
        terminal.write_line(f"not observable: {limit}", yellow=True)
    if not history.touches and not limits:
        terminal.write_line("no touch of CUDA was seen")
    terminal.write_line(counts.line(), red=bad, green=not bad, bold=True)
    if settings.ledger:
        terminal.write_line(f"ledger: {settings.ledger}")


def _when(found: Finding) -> str:
    return found.nodeid or str(found.record.get("phase") or "outside any test")


def summary_lines(history: History, *, advice: bool = True) -> list[str]:
    """The touches at start-up, import and collection: one for each line, the first in full.

    ``advice`` is left out where a failure has given it.
    """
    lines: list[str] = []
    places: dict[str, list[Touch]] = {}
    for touch in history.touches:
        if _phase(touch) != "test" and not touch.poisoned:
            places.setdefault(touch.where, []).append(touch)
    shown = list(places.values())[:_MOST_PLACES]
    for number, touches in enumerate(shown):
        first = touches[0]
        times = f" (and {len(touches) - 1} more times)" if len(touches) > 1 else ""
        if number == 0:
            lines.append(f"touched at import or collection{times}:")
            lines.extend(indent(touch_lines(first, advice=advice), "  "))
        else:
            lines.append(f"also at {headline(first)}{times}")
    if len(places) > len(shown):
        lines.append(f"... and at {len(places) - len(shown)} more places")
    return lines


__all__ = ["Counts", "header", "limits_of", "summary_lines", "write_summary"]
