"""pytest-benchmark beside isolated tests: what they measure is in its table and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Seen, Sessions
from tests.support.isolation_plugins import needs

IN_ONE_PROCESS = ""
SOURCE = """
import pytest

def work(n=100):
    return sum(range(n))

@pytest.mark.parametrize("n", [10, 20])
def test_measures(benchmark, n):
    benchmark.extra_info["why"] = {"n": n}
    assert benchmark.pedantic(work, args=(n,), rounds=4, iterations=2) == sum(range(n))

@pytest.mark.benchmark(group="slow ones", min_rounds=3, max_time=0.05)
def test_of_a_group(benchmark):
    benchmark(work)

def test_fails_when_it_has_measured(benchmark):
    benchmark.pedantic(work, rounds=2)
    assert 0

def test_raises_while_it_measures(benchmark):
    benchmark.pedantic(lambda: 1 / 0, rounds=2)

@pytest.fixture
def later(benchmark):
    yield
    benchmark.extra_info["later"] = 1

def test_says_more_in_its_teardown(benchmark, later):
    benchmark.pedantic(work, rounds=2)

def test_measures_nothing():
    pass
"""
PROFILED = """
def work():
    return sorted([3, 1, 2])

def test_it(benchmark):
    benchmark.pedantic(work, rounds=3)
"""


def run(path: Path, method: str, *args: str) -> Seen:
    of_no_worker = {"PYTEST_XDIST_WORKER": ""}  # within one, pytest-benchmark measures nothing
    return Sessions(path, *args, env=of_no_worker, plugins=[needs("benchmark")]).run(method)


def measured(path: Path, method: str) -> tuple[Seen, dict[str, Any]]:
    """Return what the file of the session says of each benchmark, less how long it took."""
    seen = run(path, method, "--benchmark-json=bench.json")
    document = json.loads((path / "bench.json").read_text(encoding="utf-8"))
    told = {}
    for each in document["benchmarks"]:
        seconds = each.pop("stats")
        assert 0 < seconds["min"] <= seconds["mean"] <= seconds["max"] < 10
        if each["group"] is None:  # pytest-benchmark chooses how often the other one runs
            each["rounds"] = len(seconds["data"]), seconds["rounds"], seconds["iterations"]
        told[each["name"]] = each
    return seen, told


@pytest.mark.parametrize("method", METHODS)
def test_what_was_measured_is_what_it_is_in_one_process(tmp_path: Path, method: str) -> None:
    (tmp_path / "test_it.py").write_text(SOURCE, encoding="utf-8")
    _, expected = measured(tmp_path, IN_ONE_PROCESS)
    seen, told = measured(tmp_path, method)
    assert told == expected
    assert told["test_measures[20]"]["extra_info"] == {"why": {"n": 20}}
    assert told["test_measures[20]"]["params"] == {"n": 20}
    assert told["test_says_more_in_its_teardown"]["extra_info"] == {"later": 1}
    assert "test_raises_while_it_measures" not in told
    tables = [line for line in seen.stdout if line.startswith("---") and "benchmark" in line]
    assert len(tables) == 2
    assert "slow ones" in tables[-1]


@pytest.mark.parametrize("method", METHODS)
def test_a_test_that_got_slower_than_it_may_fails_the_session(tmp_path: Path, method: str) -> None:
    (tmp_path / "test_it.py").write_text(PROFILED, encoding="utf-8")
    assert run(tmp_path, IN_ONE_PROCESS, "--benchmark-save=before").status[0] == "0"
    (saved,) = (tmp_path / ".benchmarks").rglob("*_before.json")
    document = json.loads(saved.read_text(encoding="utf-8"))
    for each in document["benchmarks"]:
        each["stats"]["min"] = 1e-12
    saved.write_text(json.dumps(document), encoding="utf-8")
    seen = run(tmp_path, method, "--benchmark-compare", "--benchmark-compare-fail=min:50%")
    assert seen.status[0] != "0"


@pytest.mark.parametrize("method", METHODS)
def test_a_profile_is_shown(tmp_path: Path, method: str) -> None:
    (tmp_path / "test_it.py").write_text(PROFILED, encoding="utf-8")
    seen = run(tmp_path, method, "--benchmark-cprofile=ncalls")
    assert any("sorted" in line for line in seen.stdout)
    assert seen.status[0] == "0"
