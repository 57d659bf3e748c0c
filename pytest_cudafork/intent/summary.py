"""The section "intent": how many tests did not run as they were meant to, and which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_cudafork.counted import count_of
from pytest_cudafork.intent.kinds import PHRASES
from pytest_cudafork.settings.intent import GPU_SEEN, GPU_SKIPPED, KINDS
from pytest_cudafork.settings.options import BASELINE

if TYPE_CHECKING:
    from pytest_cudafork.intent.hooks import IntentHooks

_MOST = 10
"""Tests of one kind that are named without -v."""
Line = tuple[str, dict[str, bool]]
"""A line and its colors."""


def summary_lines(hooks: IntentHooks, *, verbose: bool) -> Iterator[Line]:
    """Yield the lines of the section; ``verbose`` names every test."""
    if hooks.shortage:
        error = "ERROR: " if GPU_SKIPPED in hooks.errors else ""
        yield f"{error}{hooks.shortage}", {"red": True}
    if hooks.expected == 0 and GPU_SEEN not in hooks.judged:
        yield "not observable: whether a test saw a GPU (add --cuda-fork-check)", {"yellow": True}
    for kind in KINDS:
        if kind in hooks.judged:
            yield from _of_kind(hooks, kind, verbose=verbose)
    if hooks.written:
        yield f"baseline written: {hooks.written}", {}
    elif hooks.gone:
        for kind, nodeid in hooks.gone:
            one, _ = PHRASES[kind]
            yield f"gone from the baseline: {nodeid}, which {one} no more", {"yellow": True}
        yield f"  remove it by {BASELINE.flag}-update=shrink", {}
    if hooks.failure:
        yield f"ERROR: {hooks.failure}", {"red": True}


def _of_kind(hooks: IntentHooks, kind: str, *, verbose: bool) -> Iterator[Line]:
    found = hooks.of(kind)
    accepted = sum(map(hooks.is_accepted, found)) if kind in hooks.errors else 0
    bad = kind in hooks.errors and accepted < len(found)
    note = f" ({accepted} in the baseline)" if accepted else ""
    one, many = PHRASES[kind]
    tests = count_of(len(found), f"test {one}", f"tests {many}")
    yield f"{tests}{note}", {"red": bad, "yellow": bool(found) and not bad, "green": not found}
    shown = found if verbose else found[:_MOST]
    for slip in shown:
        yield f"  {slip.nodeid}: {' '.join(slip.why.split())}", {}
    if len(found) > len(shown):
        yield f"  ... and {len(found) - len(shown)} more (-v shows all)", {}
