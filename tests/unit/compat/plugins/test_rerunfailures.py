"""Names of pytest-rerunfailures: how it decides, and where it counts."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.compat.plugins import rerunfailures
from tests.unit.compat import require


@pytest.fixture
def plugin() -> Any:
    """The plugin itself, where it is installed."""
    return pytest.importorskip("pytest_rerunfailures")


SESSION = ("-p", "pytest_rerunfailures")


def item_of(pytester: pytest.Pytester, *args: str) -> pytest.Item:
    """Return a test of a session with the plugin and these options."""
    path = pytester.makepyfile("def test_it(): pass")
    config = pytester.parseconfigure(*SESSION, *args, str(path))
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    (item,) = session.perform_collect()
    return item


def test_pytest_rerunfailures_still_has_the_names(plugin: Any) -> None:
    counts = ("StatusDB", "ClientStatusDB", "ServerStatusDB")
    for name in ("get_reruns_count", "get_reruns_delay", *counts):
        require("pytest-rerunfailures", plugin, name, "tests whose process died")


def test_names_of_newer_releases_are_there(plugin: Any) -> None:
    if not hasattr(plugin, "get_reruns_delay_backoff_factor"):
        pytest.skip("a release that has none of them yet")
    for name in ("_is_rerun_path_excluded", "_remove_failed_subtest_reports_from_stats"):
        require("pytest-rerunfailures", plugin, name, "tests whose process died")


def test_a_session_counts_its_reruns(pytester: pytest.Pytester, plugin: Any) -> None:
    item = item_of(pytester, "--reruns=2", "--reruns-delay=3")
    require("pytest-rerunfailures", item.config, "failures_db", "counting reruns")
    assert rerunfailures.is_loaded()
    assert rerunfailures.is_active(item.config)
    assert rerunfailures.most_reruns(item) == 2
    assert rerunfailures.delay_before(item, 2) == 3.0
    assert not rerunfailures.is_excluded(item)
    assert rerunfailures.may_rerun_once_more(item.config)


def test_a_limit_of_the_session_holds(pytester: pytest.Pytester, plugin: Any) -> None:
    item = item_of(pytester, "--reruns=5")
    counts = item.config.failures_db  # type: ignore[attr-defined]
    if not hasattr(counts, "try_increment_suite_reruns"):
        pytest.skip("a release without --max-suite-reruns")
    item.config.option.max_suite_reruns = 1
    assert rerunfailures.may_rerun_once_more(item.config)
    assert not rerunfailures.may_rerun_once_more(item.config)


def test_counts_go_on_in_a_child(pytester: pytest.Pytester, plugin: Any) -> None:
    item = item_of(pytester, "--reruns=5")
    counts = item.config.failures_db  # type: ignore[attr-defined]
    before = rerunfailures.reruns_of_session(item.config)
    rerunfailures.count_rerun_of_session(item.config)
    if hasattr(counts, "get_suite_reruns"):
        assert rerunfailures.reruns_of_session(item.config) == before + 1
        require("pytest-rerunfailures", counts, "increment_suite_reruns", "counting reruns")
    rerunfailures.continue_counts(item, 3, 7)
    assert counts.get_test_failures(item.nodeid) == 3
    assert counts.get_test_failures("of a test that follows in the same process") == 0
    if hasattr(counts, "get_suite_reruns"):
        assert rerunfailures.reruns_of_session(item.config) == 7


def test_processes_that_share_a_count_do_not_count_twice() -> None:
    shared = SimpleNamespace(sock=object(), get_suite_reruns=lambda: 4)
    config: Any = SimpleNamespace(failures_db=shared, workerinput={})
    assert rerunfailures.reruns_of_session(config) == 0
    rerunfailures.count_rerun_of_session(config)  # nothing is asked of it


def test_a_process_that_works_for_a_session_starts_no_thread_beside_xdist(
    pytester: pytest.Pytester, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setattr(plugin, "ServerStatusDB", plugin.ServerStatusDB)  # put back afterwards
    config = pytester.parseconfig("-p", "xdist", "-p", "rerunfailures", "--reruns=2")
    rerunfailures.count_without_server(config)
    before = set(threading.enumerate())
    config._do_configure()
    try:
        assert not set(threading.enumerate()) - before
        assert type(config.failures_db) is plugin.StatusDB  # type: ignore[attr-defined]
    finally:
        config._ensure_unconfigure()


def test_a_worker_of_xdist_goes_on_to_ask_the_controller(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = plugin.ServerStatusDB
    rerunfailures.count_without_server(cast("Any", SimpleNamespace(workerinput={})))
    assert plugin.ServerStatusDB is server


def test_a_session_without_counts_goes_on_as_it_is() -> None:
    item: Any = SimpleNamespace(config=SimpleNamespace(), nodeid="a")
    rerunfailures.continue_counts(item, 3, 7)
    assert not hasattr(item.config, "failures_db")


def test_failed_subtests_are_forgotten_by_the_plugins_own_function(
    monkeypatch: pytest.MonkeyPatch, plugin: Any
) -> None:
    told: list[tuple[object, ...]] = []
    name = "_remove_failed_subtest_reports_from_stats"
    monkeypatch.setattr(plugin, name, lambda *args: told.append(args), raising=False)
    item: Any = SimpleNamespace(config="c", session="s", nodeid="n")
    rerunfailures.forget_failed_subtests(item)
    assert told == [("c", "s", "n")]


def test_a_session_without_it_is_not_its(pytester: pytest.Pytester) -> None:
    assert not rerunfailures.is_active(pytester.parseconfig("-p", "no:rerunfailures"))


class Counts:
    """Counts of a session, as the plugin keeps them in one process."""

    def __init__(self) -> None:
        self._suite_rerun_count = 1

    def get_suite_reruns(self) -> int:
        """Return how many reruns there were."""
        return self._suite_rerun_count

    def increment_suite_reruns(self) -> None:
        """Count one."""
        self._suite_rerun_count += 1

    def try_increment_suite_reruns(self, most: int) -> bool:
        """Count one if it may be."""
        return self._suite_rerun_count < most

    def get_test_failures(self, name: str) -> int:
        """Return how often a test failed."""
        return 0


def test_a_stand_in_needs_no_more_than_these_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        get_reruns_count=lambda item: 2,
        get_reruns_delay=lambda item: 3,
        get_reruns_delay_backoff_factor=lambda item: 2.0,
        _is_rerun_path_excluded=lambda item: True,
    )
    monkeypatch.setitem(sys.modules, "pytest_rerunfailures", module)
    manager = SimpleNamespace(is_registered=lambda plugin: plugin is module)
    option = SimpleNamespace(max_suite_reruns=None)
    config: Any = SimpleNamespace(pluginmanager=manager, option=option, failures_db=Counts())
    item: Any = SimpleNamespace(config=config, nodeid="a")
    assert rerunfailures.is_loaded()
    assert rerunfailures.is_active(config)
    assert rerunfailures.most_reruns(item) == 2
    assert rerunfailures.is_excluded(item)
    assert rerunfailures.delay_before(item, 3) == 12.0
    assert rerunfailures.may_rerun_once_more(config)
    option.max_suite_reruns = 1
    assert not rerunfailures.may_rerun_once_more(config)
    rerunfailures.count_rerun_of_session(config)
    assert rerunfailures.reruns_of_session(config) == 2
    rerunfailures.continue_counts(item, 4, 1)
    assert config.failures_db.get_test_failures("a") == 4
    assert rerunfailures.reruns_of_session(config) == 2
    rerunfailures.forget_failed_subtests(item)  # this release has no such function
