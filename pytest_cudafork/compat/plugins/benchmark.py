"""What the plugin uses of pytest-benchmark; only its fixtures, options and hooks are public.

It keeps what was measured in the session of the process that measures, and makes its table, files
and comparisons of that when the session ends. What an isolated test has measured must come to the
session of the pytest process.
"""

from __future__ import annotations

import pstats
import sys
from collections.abc import Mapping
from typing import Any

import pytest

Packed = dict[str, Any]
"""What one benchmark came to, as plain data."""


def measured(config: pytest.Config) -> list[Any]:
    """Return what has been measured in this session so far (``BenchmarkSession.benchmarks``).

    [] where pytest-benchmark takes no part in it.
    """
    session: Any = getattr(config, "_benchmarksession", None)
    found: list[Any] = [] if session is None else session.benchmarks
    return found


def pack(measurement: Any) -> Packed:
    """Return a measurement (``pytest_benchmark.stats.Metadata``) as plain data for ``enter``."""
    profile = measurement.cprofile_stats
    return {
        "seconds": list(measurement.stats.data),  # of one iteration each
        "iterations": measurement.iterations,
        "group": measurement.group,
        "extra_info": dict(measurement.extra_info),
        "failed": bool(measurement.has_error),
        "profile": None if profile is None else _pack_profile(profile.stats),
    }


def enter(item: pytest.Item, packed: Packed) -> None:
    """Let the session know of what a test has measured in another process.

    The test's own fixture is made as pytest-benchmark makes it (``BenchmarkFixture``, with the
    options of the session and of the mark), and its ``_make_stats`` enters it.

    Raises:
        LookupError, TypeError: It was not packed by ``pack``.

    """
    session: Any = getattr(item.config, "_benchmarksession", None)
    if session is None:
        return
    plugin: Any = sys.modules["pytest_benchmark.plugin"]
    marker = item.get_closest_marker("benchmark")
    asked = {} if marker is None else dict(marker.kwargs)
    if "timer" in asked:
        asked["timer"] = plugin.NameWrapper(asked["timer"])
    fixture = plugin.BenchmarkFixture(
        item,
        add_stats=session.benchmarks.append,
        logger=session.logger,
        warner=item.warn,
        disabled=False,
        **{**session.options, **asked},
    )
    fixture.group, fixture.has_error = packed["group"], packed["failed"]
    fixture.extra_info.update(packed["extra_info"])
    seconds, profile = [float(each) for each in packed["seconds"]], packed["profile"]
    made = fixture._make_stats(int(packed["iterations"]))
    made.stats.data.extend(seconds)
    if profile is not None:
        made.cprofile_stats = pstats.Stats(_Profile(profile))  # type: ignore[arg-type]


def _pack_profile(stats: Mapping[Any, Any]) -> list[Any]:
    return [
        [list(function), *counts, [[list(each), list(of_it)] for each, of_it in callers.items()]]
        for function, (*counts, callers) in stats.items()
    ]


class _Profile:
    """What ``pstats.Stats`` takes for a profiler."""

    def __init__(self, packed: list[Any]) -> None:
        self.stats = {
            tuple(function): (*counts, {tuple(each): tuple(of_it) for each, of_it in callers})
            for function, *counts, callers in packed
        }

    def create_stats(self) -> None:
        """Do nothing: it has them."""
