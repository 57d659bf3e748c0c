"""Names of coverage.py, on a measurement of their own that never begins to trace this process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import coverage_internals
from tests.unit.compat import require

coverage: Any = pytest.importorskip("coverage")

TRACED = """
import json, sys, coverage
from pytest_cudafork.compat import coverage_internals

class Basket:
    def __init__(self):
        self.files = []
    def add_lines(self, lines):
        self.files += lines
    def add_arcs(self, arcs):
        self.files += arcs
    def set_context(self, context):
        pass
    def add_file_tracers(self, tracers):
        pass
    def touch_files(self, *args, **kwargs):
        pass

measurement = coverage.Coverage(data_file=None, config_file=False, source_pkgs=["wave", "sndhdr2"])
coverage_internals.silence(measurement)
measurement.start()
basket = Basket()
before = coverage_internals.redirect_collector(measurement, basket)
import wave
coverage_internals.flush(measurement)
unmatched = list(coverage_internals.packages_never_imported(measurement))
print(json.dumps([[name.rpartition("/")[2] for name in basket.files], unmatched,
                  type(before).__name__]))
"""


def test_coverage_still_has_the_names(tmp_path: Path) -> None:
    measurement = coverage.Coverage(data_file=None, config_file=False)
    for name in coverage_internals.WARNINGS:
        require("coverage", measurement, name, "measuring in children")
    names = (
        coverage_internals.COLLECTOR,
        coverage_internals.INSIDE,
        coverage_internals.DATA,
        coverage_internals.SUFFIX,
    )
    for name in names:
        require("coverage", measurement, name, "measuring in children")
    data = coverage.CoverageData(no_disk=True)
    require("coverage", data, coverage_internals.CONTEXT, "contexts of what children measured")


def test_a_running_measurement_collects_elsewhere(pytester: pytest.Pytester) -> None:
    import json

    done = pytester.run(sys.executable, "-c", TRACED)
    assert done.ret == 0
    files, unmatched, before = json.loads(done.outlines[-1])
    assert files == ["wave.py"]
    assert unmatched == ["sndhdr2"]
    assert before == "CoverageData"


def test_warnings_are_switched_off_and_on() -> None:
    measurement = coverage.Coverage(data_file=None, config_file=False)
    assert coverage_internals.warn_of_no_data(measurement, True) is True
    coverage_internals.silence(measurement)
    assert coverage_internals.warn_of_no_data(measurement, True) is False
    assert coverage_internals.warn_of_no_data(measurement, False) is True


@pytest.mark.parametrize("event", ["atexit", "sigterm"])
def test_what_stands_in_for_save_is_called_at_the_end(event: str) -> None:
    measurement = coverage.Coverage(data_file=None, config_file=False)
    measurement._auto_save = True  # as the one that a start of the interpreter makes
    called: list[str] = []
    coverage_internals.replace_save(measurement, lambda: called.append(event))
    measurement._atexit(event)
    assert called == [event]


def test_the_own_save_is_called_whatever_stands_in_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    monkeypatch.setattr(coverage.Coverage, "save", lambda self: called.append("own"))
    measurement = coverage.Coverage(data_file=None, data_suffix="s", config_file=False)
    assert coverage_internals.data_suffix(measurement) == "s"
    assert coverage_internals.own_data(measurement) is None, "it has not begun"
    coverage_internals.replace_save(measurement, lambda: called.append("other"))
    measurement.save()
    coverage_internals.save_data(measurement)
    assert called == ["other", "own"]


def test_the_context_is_the_one_that_was_set() -> None:
    data = coverage.CoverageData(no_disk=True)
    assert coverage_internals.current_context(data) is None
    data.set_context("a test")
    assert coverage_internals.current_context(data) == "a test"


def test_a_measurement_without_sources_has_no_list_of_them() -> None:
    assert coverage_internals.packages_never_imported(object()) == []


class Collector:
    """As much of coverage's collector as is used."""

    def __init__(self) -> None:
        self.data_lock: Any = "held by a thread of the parent"
        self.covdata = "the parent's"
        self.data = {"a.py": {1, 2}}
        self.tracers = [self]
        self.active = True
        self.flushed = 0

    def reset_activity(self) -> None:
        """As its one tracer."""
        self.active = False

    def use_data(self, data: Any, context: str) -> None:
        """Collect elsewhere."""
        self.covdata, self.context = data, context

    def flush_data(self) -> None:
        """Count it."""
        self.flushed += 1


def test_a_forked_child_forgets_what_its_parent_measured_and_holds_no_lock() -> None:
    collector = Collector()
    of_a_frame_under_way = collector.data["a.py"]
    config = SimpleNamespace(context="of the test")
    measurement = SimpleNamespace(_collector=collector, config=config)
    before = coverage_internals.redirect_collector(measurement, "own")
    assert (before, collector.covdata, collector.context) == ("the parent's", "own", "of the test")
    assert not collector.active
    assert collector.data["a.py"] is of_a_frame_under_way
    assert not of_a_frame_under_way
    assert collector.data_lock.acquire(blocking=False)
    coverage_internals.flush(measurement)
    assert collector.flushed == 1
