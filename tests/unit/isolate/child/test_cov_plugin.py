"""Tests of pytest-cov's part in a child, with a stand-in for pytest-cov."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.isolate import coverage_data
from pytest_cudafork.isolate.child import cov_plugin

MEASUREMENT = object()


class _Controller:
    """pytest-cov's own, which stops and goes on at the wish of a test."""

    def __init__(self, options: object, config: object, node_id: object) -> None:
        self.measures = True

    def pause(self) -> None:
        self.measures = False

    def resume(self) -> None:
        self.measures = True


@pytest.fixture(autouse=True)
def _pytest_cov(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load a pytest-cov, in a process where something is measured."""
    contexts = SimpleNamespace(TestContextPlugin=lambda controller: ("contexts", controller))
    engine = SimpleNamespace(CovController=_Controller)
    modules = sys.modules
    for name, module in (("pytest_cov.plugin", contexts), ("pytest_cov.engine", engine)):
        monkeypatch.setitem(modules, name, module)
    monkeypatch.setattr(coverage_data, "current", lambda: MEASUREMENT)
    # no plugin that happens to be installed: that takes a second
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


class _Config:
    """As much of a configuration as is used."""

    def __init__(self, **options: object) -> None:
        self.option = SimpleNamespace(**options)
        self.pluginmanager = pytest.PytestPluginManager()

    def get(self, name: str) -> Any:
        """Return a plugin."""
        return self.pluginmanager.get_plugin(name)


def _stand_in(config: Any) -> Any:
    cov_plugin.stand_in(config)
    return config


def test_what_a_test_asks_of_pytest_cov_is_there() -> None:
    config = _stand_in(_Config(cov_source=[], cov_context=None))
    plugin = config.get("_cov")  # by this name the fixture ``cov`` looks for it
    assert isinstance(plugin, cov_plugin.CovStandIn)
    assert plugin.cov_controller.cov is MEASUREMENT
    assert plugin.cov_controller.started
    assert config.get("_cov_contexts") is None


def test_contexts_are_named_after_tests_if_they_are_asked_for() -> None:
    config = _stand_in(_Config(cov_source=[], cov_context="test"))
    assert config.get("_cov_contexts") == ("contexts", config.get("_cov").cov_controller)


def test_where_nothing_is_measured_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage_data, "current", lambda: None)
    assert _stand_in(_Config(cov_source=[])).get("_cov") is None


def test_where_pytest_cov_is_not_loaded_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _stand_in(_Config()).get("_cov") is None  # without its options
    monkeypatch.delitem(sys.modules, "pytest_cov.plugin")
    assert _stand_in(_Config(cov_source=[])).get("_cov") is None


def test_nothing_is_measured_while_a_test_runs_that_does_not_want_it(
    pytester: pytest.Pytester,
) -> None:
    controller = _Controller(None, None, None)
    measured: dict[str, bool] = {}
    after: dict[str, bool] = {}

    class Looks:
        @pytest.hookimpl(wrapper=True, trylast=True)
        def pytest_runtest_call(self, item: pytest.Item) -> Any:
            measured[item.name] = controller.measures
            return (yield)

        def pytest_runtest_teardown(self, item: pytest.Item) -> None:
            after[item.name] = controller.measures

    pytester.makeini("[pytest]\nmarkers = no_cover")
    pytester.makepyfile(
        """
        import pytest
        @pytest.fixture
        def no_cover(): pass
        def test_plain(): pass
        @pytest.mark.no_cover
        def test_marked(): pass
        def test_fixture(no_cover): pass
        @pytest.mark.no_cover
        def test_fails(): assert 0
        """
    )
    plugins = [cov_plugin.CovStandIn(controller), Looks()]
    result = pytester.inline_run("-p", "no:cacheprovider", plugins=plugins)
    result.assertoutcome(passed=3, failed=1)
    assert measured == {
        "test_plain": True,
        "test_marked": False,
        "test_fixture": False,
        "test_fails": False,
    }
    assert set(after.values()) == {True}
