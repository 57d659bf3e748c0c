"""The names of all checks of a graph, as findings, reports and the reference bear them.

``docs/reference/graphs.md`` says of each what it means, in this order.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["GRAPH_CHECKS", "CheckName"]

CheckName = Literal[
    # of the two passes of a pair: pair/checks.py
    "aliased-state",
    "lazy-init-skipped",
    "not-shared",
    "wrong-contents",
    "missing-kernels",
    # of replays and eager runs
    "replay-differs",
    "no-op-replay",
    "moved-input",
    "rng-frozen",
    "uninitialized-read",
    # of the capture itself, told by the backend
    "host-sync",
    "outside-pool",
    "freed-memory",
    "not-captured",
    "capture-failed",
    # no verdict: the backend cannot run what the code does
    "not-judged",
]

GRAPH_CHECKS = (
    "stale-data",
    "freed-memory",
    "moved-input",
    "unfilled-read",
    "rng-frozen",
    "no-op-replay",
    "overwritten-result",
    "frozen-host-number",
)
"""The checks of graphs that code under test captures by itself."""
