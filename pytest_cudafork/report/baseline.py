"""What the last section says of the baseline: what it accepted, what is gone, what was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pytest_cudafork.counted import count_of

if TYPE_CHECKING:
    import pytest

    from pytest_cudafork.baseline.entries import Accepted
    from pytest_cudafork.check.baseline_hooks import BaselineHooks
    from pytest_cudafork.check.baseline_result import BaselineResult, Seen
    from pytest_cudafork.settings.options import Settings

_MOST = 20
"""Lines of one kind, beyond which their number is told."""
SHRINK = "--cuda-fork-baseline-update=shrink"
"""The option that removes what is gone."""


def write_baseline(
    terminal: pytest.TerminalReporter, settings: Settings, root: str, baseline: BaselineHooks
) -> None:
    """Write the lines of a session that has a baseline."""
    from pytest_cudafork.observe.story.paths import short_path

    result, gone = baseline.result, baseline.gone
    verbose = terminal.verbosity > 0
    name = short_path(settings.baseline, root)
    terminal.write_line(f"baseline {name}: {accepted_words(result)}", yellow=bool(result.accepted))
    if verbose:
        for line in seen_lines(result.accepted):
            terminal.write_line(f"  {line}")
    if baseline.written:
        terminal.write_line(f"baseline {name} written: {baseline.written}")
    elif gone:
        for line in gone_lines(gone, result, verbose=verbose):
            terminal.write_line(line, yellow=True)
        terminal.write_line(f"  remove them from {name} by {SHRINK}")
    if settings.baseline_update and result.unknown:
        terminal.write_line(unknown_words(result), red=True)
    if baseline.failure:
        terminal.write_line(f"ERROR: {baseline.failure}", red=True)


def accepted_words(result: BaselineResult) -> str:
    """Say in one line what was accepted."""
    if not result.accepted:
        return "nothing of it was seen"
    times: dict[str, int] = {}
    for seen in result.accepted:
        times[seen.what.kind] = times.get(seen.what.kind, 0) + seen.times
    words = {
        "touch": ("touch", "touches"),
        "fork": ("fork", "forks"),
        "poisoned": ("poisoned touch", "poisoned touches"),
    }
    kinds = [count_of(times[kind], *words[kind]) for kind in words if kind in times]
    lines = {seen.what.culprit for seen in result.accepted}
    return f"accepted {', '.join(kinds)}, because of {count_of(len(lines), 'line')}"


def unknown_words(result: BaselineResult) -> str:
    """Say that errors cannot be accepted."""
    errors = count_of(result.unknown, "error")
    return f"{errors} cannot be accepted: nobody saw the line that initialized CUDA"


def seen_lines(seen: Iterable[Seen]) -> Iterator[str]:
    """Name each culprit, how often it was seen and where."""
    for each in seen:
        others = len(each.places) - 1
        more = f" and in {count_of(others, 'more place')}" if others else ""
        yield f"{each.what.words} ({count_of(each.times, 'time')}: {each.places[0]}{more})"


def gone_lines(
    gone: Iterable[Accepted], result: BaselineResult, *, verbose: bool = False
) -> Iterator[str]:
    """Name each entry that is gone, and how that is known."""
    entries = list(gone)
    shown = entries if verbose else entries[:_MOST]
    for entry in shown:
        why = "its text is not there" if entry in result.missing else "it was not seen"
        yield f"gone from the tests ({why} any more): {entry.words}"
    if len(entries) > len(shown):
        yield f"... and {len(entries) - len(shown)} more (-v shows all)"
