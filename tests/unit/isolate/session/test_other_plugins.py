"""Tests of what pytest-rerunfailures is asked and told about tests in processes of their own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.isolate.session import other_plugins


class _Counts:
    """The reruns of a session, as the plugin counts them."""

    def __init__(self) -> None:
        self.reruns = 4

    def get_suite_reruns(self) -> int:
        return self.reruns

    def increment_suite_reruns(self) -> None:
        self.reruns += 1

    def try_increment_suite_reruns(self, most: int) -> bool:
        if self.reruns >= most:
            return False
        self.reruns += 1
        return True


class _Item:
    """A test of a session with the plugin, and what the session was told."""

    nodeid = "test_a.py::test_x"
    location = ("test_a.py", 1, "test_x")

    def __init__(self) -> None:
        self.told: list[str] = []
        self.stash = pytest.Stash()
        self.session = self.told
        self.counts = _Counts()
        self.active = True
        self.option = SimpleNamespace()
        manager = SimpleNamespace(is_registered=lambda plugin: self.active)
        self.config = SimpleNamespace(
            pluginmanager=manager, option=self.option, failures_db=self.counts
        )
        self.ihook = SimpleNamespace(
            pytest_runtest_logstart=lambda nodeid, location: self.told.append(f"start {nodeid}"),
            pytest_runtest_logfinish=lambda nodeid, location: self.told.append(f"end {nodeid}"),
            pytest_runtest_makereport=lambda item, call: self.told.append(f"make {call.when}"),
        )


BEGUN_AGAIN = [
    "end test_a.py::test_x",
    "start test_a.py::test_x",
    "subtests of test_a.py::test_x forgotten",
]


class _Plugin:
    """The plugin: at most two reruns of a test, each after some seconds."""

    def __init__(self) -> None:
        self.most: int | None = 2
        self.excluded = False

    def get_reruns_count(self, item: object) -> int | None:
        return self.most

    def get_reruns_delay(self, item: object) -> float:
        return 3.0

    def _is_rerun_path_excluded(self, item: object) -> bool:
        return self.excluded

    def _remove_failed_subtest_reports_from_stats(
        self, config: object, session: list[str], nodeid: str
    ) -> None:
        session.append(f"subtests of {nodeid} forgotten")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin, imported."""
    made = _Plugin()
    monkeypatch.setitem(sys.modules, "pytest_rerunfailures", made)
    return made


@pytest.fixture
def item(plugin: Any) -> Any:
    """A test of a session in which the plugin takes part."""
    return _Item()


ERROR = "ChildCrashed: SIGSEGV in call"


def test_a_child_is_told_what_was_counted_so_far(item: Any) -> None:
    assert other_plugins.reruns_for(item) == {"runs": 0, "session": 4}
    item.stash[other_plugins.RUNS] = 2
    assert other_plugins.reruns_for(item) == {"runs": 2, "session": 4}
    item.active = False
    assert other_plugins.reruns_for(item) is None


def test_a_report_of_a_teardown_here_is_prepared_by_one_of_the_set_up(item: Any) -> None:
    other_plugins.prepare_report(item)
    assert item.told == ["make setup"]


def test_without_the_plugin_no_report_is_prepared(item: Any) -> None:
    item.active = False
    other_plugins.prepare_report(item)
    assert item.told == []


def test_a_rerun_in_a_child_is_told_and_counted_here(item: Any) -> None:
    other_plugins.announce_rerun(item)
    assert item.told == BEGUN_AGAIN
    assert item.counts.reruns == 5
    assert other_plugins.RUNS not in item.stash


@pytest.mark.parametrize(
    ("most", "runs", "wanted"), [(2, 1, True), (2, 2, True), (2, 3, False), (None, 1, False)]
)
def test_a_test_whose_process_died_runs_again_as_often_as_the_plugin_says(
    item: Any, plugin: Any, most: int | None, runs: int, wanted: bool
) -> None:
    plugin.most = most
    assert other_plugins.rerun_elsewhere(item, runs, ERROR) is wanted


def test_without_the_plugin_nothing_runs_again(item: Any) -> None:
    item.active = False
    assert not other_plugins.rerun_elsewhere(item, 1, ERROR)


def test_a_file_that_is_left_out_is_not_run_again(item: Any, plugin: Any) -> None:
    plugin.excluded = True
    assert not other_plugins.rerun_elsewhere(item, 1, ERROR)


def test_the_limit_of_the_session_holds_and_is_used_up(item: Any) -> None:
    item.option.max_suite_reruns = 5
    assert other_plugins.rerun_elsewhere(item, 1, ERROR)
    assert not other_plugins.rerun_elsewhere(item, 1, ERROR)
    assert item.counts.reruns == 5


@pytest.mark.parametrize(
    ("only", "never", "wanted"),
    [
        (["ChildCrashed: SIG"], None, True),
        (["ChildTimeout", "in call$"], None, True),
        (["ChildTimeout"], None, False),
        (None, ["SIGKILL"], True),
        (None, ["SIGKILL", "SIGSEGV"], False),
        (["SIGSEGV"], ["ChildCrashed"], False),
    ],
)
def test_options_choose_by_the_kind_and_the_words_of_an_error(
    item: Any, only: list[str] | None, never: list[str] | None, wanted: bool
) -> None:
    item.option.only_rerun, item.option.rerun_except = only, never
    item.option.max_suite_reruns = 100
    assert other_plugins.rerun_elsewhere(item, 1, ERROR) is wanted
    assert item.counts.reruns == (5 if wanted else 4)


def test_before_it_runs_again_the_delay_passes_and_the_run_is_counted(
    item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(other_plugins, "time", SimpleNamespace(sleep=slept.append))
    other_plugins.prepare_rerun(item, 2)
    assert slept == [3.0]
    assert item.told == BEGUN_AGAIN
    assert other_plugins.reruns_for(item) == {"runs": 2, "session": 4}


def test_a_worker_is_told_text_that_it_can_send_on() -> None:
    told = {"l\udcff": ["caf\u00e9", ("\ud800", 1, None)]}
    worker: Any = SimpleNamespace(workerinput={})
    assert other_plugins.sendable(worker, told) == {"l\\udcff": ["caf\u00e9", ("\\ud800", 1, None)]}


def test_elsewhere_it_is_told_what_was_said() -> None:
    told = {"longrepr": "\udcff"}
    config: Any = SimpleNamespace()
    assert other_plugins.sendable(config, told) is told
