"""What the isolation benchmark has to reach, and how a measured figure is judged."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple


class Target(NamedTuple):
    """One figure to reach: ``value`` at most ``limit``, or at least if ``at_least``."""

    name: str
    text: str
    limit: float
    at_least: bool = False

    def judge(self, value: float, **more: Any) -> dict[str, Any]:
        """Return what goes into the JSON for this target."""
        met = value >= self.limit if self.at_least else value <= self.limit
        return {"value": round(value, 4), "limit": self.limit, "met": met, **more}


TARGETS = {
    target.name: target
    for target in (
        Target("forkserver_to_forked", "forkserver / pytest-forked, a test", 0.4),
        Target("spawn_to_forkserver", "multiprocessing spawn / forkserver, a test", 180, True),
        Target("forkserver_heap", "forkserver with 2 GiB in the parent / without", 1.15),
        Target("fork_to_forked", "fork / pytest-forked, a test", 0.6),
        Target("run_to_forked", "forkserver / pytest-forked, the whole run", 0.7),
        Target("spawn_to_nodeid", "spawn / pytest NODEID on busy cores, all tests", 0.65),
        Target("spawn_hidden", "spawn of tests of 2 s: time beyond the 2 s / that of NODEID", 0.05),
        Target("many_flat_cost", "10,000 tests: cost of the last tenth / of the first", 1.15),
        Target("many_flat_memory", "10,000 tests: growth / growth without isolation", 1.25),
        Target("many_left", "10,000 tests: processes, files, descriptors left behind", 0),
        Target("cuda_spawn_to_forkserver", "first CUDA tensor: spawn / forkserver", 5, True),
    )
}


def paired(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Return the median over rounds of our figure to the peer's of the same round.

    What else the machine does hits both in a round alike; the ratio of two medians over all rounds
    would compare different moments.
    """
    return statistics.median(a / b for a, b in zip(ours, peer, strict=True))
