"""The places of the last section: which lines touched CUDA and when, and what they led to.

One line of code may touch in a hundred tests, so everything is grouped by culprit.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pytest_cudafork.check.findings import Finding
from pytest_cudafork.counted import count_of
from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError
from pytest_cudafork.observe.base.records import LET_THROUGH

if TYPE_CHECKING:
    from pytest_cudafork.observe.story.stories import History
    from pytest_cudafork.observe.story.touch import Touch

_MOST_PLACES = 10


def told_culprits(history: History, reported: Collection[str]) -> set[str]:
    """Return the places that failures have told, as the culprits of what was ``reported``."""
    told = set()
    for record in history.records:
        if record["k"] not in ("touch", "fork") or record.get("id") not in reported:
            continue
        error: type[CudaForkError | CudaTouchError | PoisonedTouchError] = CudaTouchError
        if record["k"] == "fork":
            error = CudaForkError
        elif record.get("poisoned"):
            error = PoisonedTouchError
        told.add(Finding(record, error).culprit(history))
    return told


def import_lines(history: History, *, advice: bool = True, told: Collection[str] = ()) -> list[str]:
    """Tell the touches outside of tests, most at import: one for each line, the first in full.

    Args:
        history: The ledger.
        advice: Whether to say what to do; a failure has done so otherwise.
        told: The places that a failure has told in full: they are named alone.

    """
    from pytest_cudafork.observe.story.words import headline, indent, touch_lines

    lines: list[str] = []
    places = _by_place(t for t in history.touches if not t.test and not t.poisoned)
    shown = list(places.values())[:_MOST_PLACES]
    for number, touches in enumerate(shown):
        first = touches[0]
        times = _how_often(touches)
        if number == 0:
            when = "before any test" if first.phase else "outside of tests"
            lines.append(f"touched {when}{times}:")
            named = [f"{headline(first)} (told above)"]
            full = first.where not in told
            lines.extend(indent(touch_lines(first, advice=advice) if full else named, "  "))
        else:
            lines.append(f"also at {headline(first)}{times}")
    if len(places) > len(shown):
        lines.append(f"... and at {len(places) - len(shown)} more places")
    return lines


def test_lines(history: History, *, verbose: bool) -> list[str]:
    """Name the lines that touched in tests, with their tests if ``verbose``.

    What a test's own processes do leaves the pytest process as it is, so these are only counted
    unless ``verbose``.
    """
    in_tests = [touch for touch in history.touches if touch.test and not touch.poisoned]
    here = [touch for touch in in_tests if str(touch.pid) == touch.owner]
    below = [touch for touch in in_tests if str(touch.pid) != touch.owner]
    lines = _lines_of_places("touched in tests:", here, verbose=verbose)
    if verbose:
        title = "touched in processes that tests have started:"
        lines.extend(_lines_of_places(title, below, verbose=verbose))
    elif below:
        places = count_of(len(_by_place(below)), "place")
        lines.append(f"touched in processes that tests have started: at {places} (-v shows them)")
    return lines


def _how_often(touches: list[Touch]) -> str:
    """Say how many touches one place has made, and that each worker of xdist made one."""
    if len(touches) == 1:
        return ""
    processes = len({touch.pid for touch in touches})
    return f" ({len(touches)} times{f' in {processes} processes' if processes > 1 else ''})"


def _lines_of_places(title: str, touches: list[Touch], *, verbose: bool) -> list[str]:
    from pytest_cudafork.observe.story.words import headline

    places = _by_place(touches)
    shown = list(places.values())[: None if verbose else _MOST_PLACES]
    lines = [title] if shown else []
    for touches in shown:
        tests = dict.fromkeys(touch.test.rpartition(" (")[0] for touch in touches)
        where = next(iter(tests)) if len(tests) == 1 else f"{len(tests)} tests"
        often = f"{len(touches)} times in " if len(touches) > len(tests) else "in "
        lines.append(f"  {headline(touches[0])} ({often}{where})")
        if verbose and len(tests) > 1:
            lines.extend(f"    {test}" for test in tests)
    if len(places) > len(shown):
        lines.append(f"  ... and at {len(places) - len(shown)} more places (-v shows all)")
    return lines


def fork_lines(history: History, expected: Collection[str]) -> list[str]:
    """Count the refused forks by what initialized CUDA."""
    from pytest_cudafork.observe.story.images import moment_of
    from pytest_cudafork.observe.story.words import initialized_at

    @functools.cache
    def initialized_in(pid: int, begin: float) -> str:
        return initialized_at(history.initializer(pid, begin))

    forks: dict[str, list[str]] = {}
    for record in history.records:
        if record["k"] == "fork" and record.get("verdict") == "guarded":
            pid = int(record["pid"])
            initialized = initialized_in(pid, history.image_of(pid, moment_of(record)).begin)
            forks.setdefault(initialized, []).append(str(record.get("id")))
    lines = []
    for initialized, ids in forks.items():
        because = initialized.removeprefix("CUDA was initialized ")
        because = because.removeprefix("at ").removeprefix("by ")
        named = sum(each in expected for each in ids)
        note = f", {'all' if named == len(ids) else named} expected" if named else ""
        lines.append(f"{count_of(len(ids), 'fork')} refused because of {because}{note}")
    return lines


def allowed_lines(history: History) -> list[str]:
    """Name the forks that were let through while CUDA was initialized, and by which rule."""
    from pytest_cudafork.observe.story.plain_text import plain
    from pytest_cudafork.observe.story.touch import frames_from
    from pytest_cudafork.observe.story.words import fork_place

    forks = collections.Counter(
        f"{fork_place(frames_from(record.get('stack', ())))}: {plain(str(record.get('rule', '')))}"
        for record in history.records
        if record["k"] == "fork" and record.get("verdict") in LET_THROUGH
    )
    if not forks:
        return []
    lines = [
        f"  {line} ({number} times)" if number > 1 else f"  {line}"
        for line, number in forks.items()
    ]
    return ["forks allowed while initialized:", *lines]


def _by_place(touches: Iterable[Touch]) -> dict[str, list[Touch]]:
    """Group touches by culprit, in the order in which these were first seen."""
    places: dict[str, list[Touch]] = {}
    for touch in touches:
        places.setdefault(touch.where, []).append(touch)
    return places
