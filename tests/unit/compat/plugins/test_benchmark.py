"""Names of pytest-benchmark, and what is done with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import benchmark
from pytest_cudafork.process.protocol import frames
from tests.unit.compat import require

plugin = pytest.importorskip("pytest_benchmark.plugin")
stats = pytest.importorskip("pytest_benchmark.stats")

TEST = """
import pytest

@pytest.mark.benchmark(timer=lambda: 1.5, min_rounds=3)
@pytest.mark.parametrize("n", [7])
def test_it(n):
    pass
"""


@pytest.fixture
def item(pytester: pytest.Pytester) -> pytest.Item:
    """A test of a session with pytest-benchmark."""
    module = pytester.getmodulecol(TEST, configargs=("-p", "pytest_benchmark.plugin"))
    (made,) = pytester.genitems([module])
    return made


def measurement(item: pytest.Item, **options: Any) -> Any:
    """Let a fixture of the test measure something, and take it out of the session."""
    session: Any = item.config._benchmarksession  # type: ignore[attr-defined]
    given = dict(session.options, **options)
    fixture = plugin.BenchmarkFixture(
        item, add_stats=session.benchmarks.append, logger=session.logger, warner=item.warn,
        disabled=False, **given,
    )  # fmt: skip
    fixture.extra_info["why"] = [1]
    fixture.pedantic(sorted, args=([2, 1],), rounds=3, iterations=2)
    return session.benchmarks.pop()


def test_the_names_are_there(item: pytest.Item) -> None:
    use = "what isolated tests have measured"
    session = item.config._benchmarksession  # type: ignore[attr-defined]
    for name in ("benchmarks", "options", "logger"):
        require("pytest-benchmark", session, name, use)
    require("pytest-benchmark", plugin, "NameWrapper", use)
    require("pytest-benchmark", plugin.BenchmarkFixture, "_make_stats", use)
    for name in ("cprofile_stats", "stats.data", "iterations", "group", "extra_info", "has_error"):
        require("pytest-benchmark", measurement(item), name, use)


@pytest.mark.parametrize("profiled", [False, True])
def test_what_was_measured_is_the_same_in_another_session(
    item: pytest.Item, profiled: bool
) -> None:
    made = measurement(item, cprofile=profiled, cprofile_loops=1)
    packed = frames.loads(frames.dumps(frames.plain(benchmark.pack(made))))
    benchmark.enter(item, packed)
    (entered,) = benchmark.measured(item.config)
    before, after = made.as_dict(), entered.as_dict()
    before.pop("options")
    options = after.pop("options")
    assert after == before
    assert ("cprofile" in after) is profiled
    assert json.dumps(after["params"]) == '{"n": 7}'
    assert options["min_rounds"] == 3


def test_a_failure_is_known_in_the_other_session(item: pytest.Item) -> None:
    made = measurement(item)
    made.fixture.has_error = True
    benchmark.enter(item, benchmark.pack(made))
    assert benchmark.measured(item.config)[0].has_error


def test_without_pytest_benchmark_nothing_was_measured(pytester: pytest.Pytester) -> None:
    (made,) = pytester.getitems("def test_it(): pass")
    assert benchmark.measured(made.config) == []
    benchmark.enter(made, {"seconds": []})


def test_what_is_no_measurement_is_an_error(item: pytest.Item) -> None:
    with pytest.raises(LookupError):
        benchmark.enter(item, {"seconds": [1.0]})
