"""Owns the line that says, after collection, how the tests capture graphs.

It does not know what they check.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest

from pytest_cudafork.settings.options import Settings


def graph_line(settings: Settings, items: Iterable[pytest.Item]) -> str:
    """Return which backends run, and why not the others."""
    from pytest_cudafork.capture.choose import AUTO, why_no_gpu, why_not

    asked = settings.graphs or AUTO
    # The backend knows best, but asking it imports torch, which not every session needs.
    reason = why_not("cuda") if "torch" in sys.modules else why_no_gpu()
    usual = asked if asked != AUTO else ("cuda" if reason is None else "software")
    wanted = {_marked(item) or usual for item in items if _captures(item)}
    runs, skipped = [], []
    for name in ("software", "cuda"):
        if name not in wanted:
            continue
        if asked not in (AUTO, name):
            skipped.append(f"{name} skipped (--cuda-fork-graphs={asked})")
        elif name == "cuda" and reason is not None:
            skipped.append(f"cuda skipped ({reason})")
        else:
            runs.append(name)
    words = ", ".join(runs) or "none"
    if runs == ["software"] and not skipped and asked == AUTO and reason is not None:
        words += f" ({reason})"
    return "; ".join([f"graphs: {words}", *skipped])


def _captures(item: pytest.Item) -> bool:
    return "graph_backend" in getattr(item, "fixturenames", ())


def _marked(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    return call.params.get("graph_backend") if call is not None else None
