"""The names of all checks of a graph, and of what reports carry of them.

``docs/reference/graphs.md`` says of each check what it means, in this order.
"""

from __future__ import annotations

from typing import Literal

CARRIED = "_cudafork_captures"
"""The attribute of a report under which the verdicts of a test's own checks travel."""
LOOKED_AT = "cudafork_captures"
"""The attribute of a report with what was found of the captures that were looked at."""
CHECK_FAILED = "the check failed: "
"""How a reason begins why something was not judged, if it is an error of the judging."""

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
    "stale-rows",
    "missing-work",
)
"""The checks of graphs that code under test captures by itself."""
