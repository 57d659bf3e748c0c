"""Tests of coverage data that travels from children."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.isolate import coverage_data
from pytest_cudafork.isolate.coverage_data import (
    Basket,
    ChildCoverage,
    Once,
    ParentCoverage,
    begin,
    current,
    settings,
)
from pytest_cudafork.process.protocol import frames

CONTEXTS = st.sampled_from(["", "test_a|run", "snö"])


NAMES = st.sampled_from(["/a.py", "/b c.py", "/ö.py"])


LINES = st.lists(st.integers(0, 1 << 40), max_size=5)


ARCS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=5)


STEPS = st.lists(st.tuples(CONTEXTS, NAMES, LINES, ARCS), max_size=8)


@given(STEPS)
def test_what_a_basket_gives_fills_another_across_processes(steps: list[Any]) -> None:
    first, second = Basket(), Basket()
    for context, name, lines, arcs in steps:
        first.set_context(context)
        first.add_lines({name: lines})
        first.add_arcs({name: arcs})
    expected = (dict(first.lines), dict(first.arcs))
    data = first.take()
    assert first.take() is None
    if data is not None:
        second.set_context("before")
        second.add(frames.loads(frames.dumps(data)))
        assert second.set_context(None) == "before"
    assert (second.lines, second.arcs) == expected


@pytest.mark.parametrize("data", [{}, {"lines": [[1]], "arcs": []}, {"lines": 3, "arcs": []}])
def test_a_basket_refuses_what_is_no_data(data: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        Basket().add(data)


def test_nothing_is_measured_where_coverage_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "coverage", raising=False)
    assert current() is None
    assert settings() is None
    assert begin(None) is None


class _Collector:
    """coverage's own collector, as far as a child redirects it."""

    def __init__(self) -> None:
        self.data_lock = threading.Lock()
        self.covdata: Any = "the parent's data"
        self.measured: list[tuple[str, int]] = []
        self.tracers: list[Any] = []

    @property
    def data(self) -> dict[str, list[tuple[str, int]]]:
        """What it has measured."""
        return {"/a.py": self.measured}

    def use_data(self, data: Any, context: str | None) -> None:
        self.covdata = data
        data.set_context(context)

    def flush_data(self) -> None:
        for name, line in self.measured:
            self.covdata.add_lines({name: {line}})
        self.measured.clear()


class _Measurement:
    """A ``coverage.Coverage``."""

    running: ClassVar[list[_Measurement]] = []

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.config = SimpleNamespace(context=None)
        self._collector = _Collector()
        self._inorout = SimpleNamespace(source_pkgs_unmatched=[])
        self._warn_no_data = True
        self._data_suffix_specified = True
        self._warn_unimported_source = True
        self.data: Any = None
        self._data: Any = None
        self.saved = 0
        self.started_in = ""

    @classmethod
    def current(cls) -> _Measurement | None:
        return cls.running[-1] if cls.running else None

    def start(self) -> None:
        warnings.warn("modules were imported before", UserWarning, stacklevel=2)
        self.started_in = os.getcwd()

    def get_data(self) -> Any:
        return self.data

    def save(self) -> None:
        self.saved += 1


@pytest.fixture
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coverage is loaded, and measures nothing."""
    module, files = ModuleType("coverage"), ModuleType("coverage.files")
    vars(module)["Coverage"] = _Measurement
    vars(files)["relative_directory"] = lambda: "/the/directory/"
    monkeypatch.setitem(sys.modules, "coverage", module)
    monkeypatch.setitem(sys.modules, "coverage.files", files)
    monkeypatch.setattr(_Measurement, "running", [])


@pytest.fixture
def measurement(no_measurement: None) -> _Measurement:
    """A coverage is loaded, and this one runs."""
    running = _Measurement()
    _Measurement.running.append(running)
    return running


def test_the_settings_of_the_running_measurement_are_told_as_far_as_they_are_plain(
    measurement: _Measurement,
) -> None:
    vars(measurement.config).update(
        branch=True,
        source=["a", ("b", None)],
        paths={"x": ["y"]},
        plugins={"x": object()},
        path=Path("/"),
    )
    assert settings() == {
        "config": {
            "context": None,
            "branch": True,
            "source": ["a", ("b", None)],
            "paths": {"x": ["y"]},
        },
        "suffix": True,
        "directory": "/the/directory/",
    }


@pytest.mark.usefixtures("no_measurement")
def test_where_nothing_is_measured_there_are_no_settings() -> None:
    assert settings() is None
    assert begin(None) is None


def test_a_forked_child_measures_on_into_memory_of_its_own(measurement: _Measurement) -> None:
    collector = measurement._collector
    collector.data_lock.acquire()  # as a thread of the parent had it
    collector.measured = [("/a.py", 1)]
    child = begin()
    assert child is not None
    assert collector.data_lock.acquire(blocking=False)
    measurement.save()
    assert not measurement.saved  # the parent writes the file
    assert child.take() is None  # what was measured before the fork is the parent's
    collector.measured = [("/a.py", 3), ("/a.py", 2), ("/b.py", 1)]
    measurement._inorout.source_pkgs_unmatched = ["never"]
    assert child.take() == {
        "lines": [["", "/a.py", [2, 3]], ["", "/b.py", [1]]],
        "arcs": [],
        "tracers": {},
        "unmatched": ["never"],
    }
    assert child.take() is None


@pytest.mark.usefixtures("no_measurement")
def test_a_fresh_process_starts_to_measure_as_the_parent_does_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[_Measurement] = []

    class Kept(_Measurement):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            started.append(self)

    monkeypatch.setattr(sys.modules["coverage"], "Coverage", Kept)
    here = os.getcwd()
    config = {"branch": True, "context": "c", "patch": ["_exit"], "sigterm": True}
    child = begin({"config": config, "suffix": "s", "directory": str(tmp_path)})
    assert isinstance(child, ChildCoverage)
    (measurement,) = started
    assert measurement.options["data_suffix"] == "s"
    measurement.save()
    assert not measurement.saved
    assert measurement.started_in == str(tmp_path)  # and its warning is no error here
    assert os.getcwd() == here
    told = vars(measurement.config)
    assert (told["branch"], told["patch"], told["sigterm"]) == (True, ["_exit"], False)
    assert [measurement._warn_no_data, measurement._warn_unimported_source] == [False, False]
    measurement._collector.measured = [("/a.py", 1)]
    data = child.take()
    assert data is not None
    assert data["lines"] == [["c", "/a.py", [1]]]


def test_a_process_that_a_child_forks_saves_what_it_has_measured_if_anything(
    measurement: _Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin() is not None  # as in the server, and then
    assert begin() is not None  # in the child that it forks
    own = measurement._data = Basket()
    forked = os.getpid() + 1
    monkeypatch.setattr("pytest_cudafork.isolate.coverage_data.os.getpid", lambda: forked)
    saved = []
    measurement.save()
    saved.append(measurement.saved)  # it would take the file of the pytest process for its own
    measurement._collector.measured = [("/a.py", 3)]
    measurement.save()
    assert [*saved, measurement.saved] == [0, 1]
    assert own.lines == {("", "/a.py"): {3}}


def test_one_of_several_gets_what_was_measured_before_the_forks(measurement: _Measurement) -> None:
    once = Once()
    before = {"lines": [["", "/before.py", [7]]], "arcs": [], "tracers": {}}
    first, second = ChildCoverage(measurement), ChildCoverage(measurement)
    second.first_adds(None, once)  # nothing was measured: it stays to be got
    first.first_adds(before, once)
    second.first_adds(before, once)
    second.first_adds(before, None)
    assert second.take() is None
    data = first.take()
    assert data is not None
    assert data["lines"] == before["lines"]


def test_a_pipe_that_a_test_has_closed_gives_it_to_nobody() -> None:
    once = Once()
    os.close(once._read)
    assert not once.take()


def _data(*lines: list[Any], arcs: tuple[list[Any], ...] = (), **more: Any) -> dict[str, Any]:
    return {"lines": list(lines), "arcs": list(arcs), "tracers": {}, **more}


@pytest.fixture
def new_data() -> Callable[[], Any]:
    """Makes data of coverage.py itself, in memory."""
    coverage = pytest.importorskip("coverage")
    made: Callable[[], Any] = lambda: coverage.CoverageData(no_disk=True)  # noqa: E731
    return made


def test_what_children_measured_is_in_the_data_of_the_session(
    new_data: Callable[[], Any], measurement: _Measurement
) -> None:
    measurement.data = new_data()
    measurement.data.set_context("stays")
    gathered = ParentCoverage()
    gathered.add(_data(["", "/a.py", [1, 2]]))
    gathered.add(_data(["one", "/a.py", [2, 3]], ["", "/b.py", [5]]))
    gathered.finish()
    assert sorted(measurement.data.lines("/a.py")) == [1, 2, 3]
    assert sorted(measurement.data.lines("/b.py")) == [5]
    assert measurement.data.contexts_by_lineno("/a.py")[3] == ["one"]
    measurement.data.add_lines({"/c.py": [9]})
    assert measurement.data.contexts_by_lineno("/c.py")[9] == ["stays"]
    assert measurement._warn_no_data  # as it was


def test_pairs_of_lines_are_added_likewise(
    new_data: Callable[[], Any], measurement: _Measurement
) -> None:
    measurement.data = new_data()
    gathered = ParentCoverage()
    gathered.add(_data(arcs=(["", "/a.py", [[-1, 1], [1, 2]]],)))
    gathered.finish()
    assert sorted(measurement.data.arcs("/a.py")) == [(-1, 1), (1, 2)]


def test_a_package_that_a_child_has_imported_was_imported(measurement: _Measurement) -> None:
    measurement.data = Basket()
    never = measurement._inorout.source_pkgs_unmatched = ["nowhere", "in_one", "in_both"]
    gathered = ParentCoverage()
    gathered.add(_data(["", "/a.py", [1]], unmatched=["nowhere", "in_one"]))
    gathered.add(_data(["", "/a.py", [1]], unmatched=["nowhere", "in_both"]))
    gathered.finish()
    assert never == ["nowhere"]


@pytest.mark.usefixtures("no_measurement")
def test_what_comes_when_nothing_is_measured_any_more_is_dropped() -> None:
    gathered = ParentCoverage()
    gathered.add(_data(["", "/a.py", [1]]))
    gathered.finish()


def test_where_children_measured_nothing_the_session_is_left_alone(
    measurement: _Measurement,
) -> None:
    never = measurement._inorout.source_pkgs_unmatched = ["package"]
    ParentCoverage().finish()  # there is no data to add to
    assert never == ["package"]


def test_a_session_has_one_place_where_it_gathers() -> None:
    config: Any = SimpleNamespace(stash=pytest.Stash())
    gathered = coverage_data.gathered(config)
    assert isinstance(gathered, ParentCoverage)
    assert coverage_data.gathered(config) is gathered
