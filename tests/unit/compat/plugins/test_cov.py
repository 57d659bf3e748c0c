"""Names of pytest-cov, which is loaded for a session that does not run."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import cov
from tests.unit.compat import require


@pytest.fixture
def plugin() -> Any:
    """The plugin itself, where it is installed."""
    return pytest.importorskip("pytest_cov.plugin")


@pytest.fixture
def engine() -> Any:
    """What measures, where it is installed."""
    return pytest.importorskip("pytest_cov.engine")


def test_pytest_cov_still_has_the_names(plugin: Any, engine: Any) -> None:
    require("pytest-cov", engine, "CovController", "the fixture cov in a child")
    require("pytest-cov", plugin, "TestContextPlugin", "--cov-context in a child")


def test_a_session_that_is_measured_is_known_by_the_plugins_name(
    pytester: pytest.Pytester, plugin: Any
) -> None:
    config = pytester.parseconfig("-p", "pytest_cov.plugin", "--cov=anything")
    assert cov.is_loaded(config)
    assert cov.is_measuring(config), f"pytest-cov no longer registers itself as {cov.PLUGIN!r}"


def test_a_plugin_takes_its_place(pytester: pytest.Pytester, plugin: Any) -> None:
    config = pytester.parseconfig("-p", "pytest_cov.plugin", "--cov-context=test")
    assert not cov.is_measuring(config)
    measurement = object()
    controller = cov.make_controller(config, measurement)
    assert (controller.cov, controller.started) == (measurement, True)
    stand_in = object()
    cov.register(config, stand_in, controller)
    assert config.pluginmanager.get_plugin("_cov") is stand_in
    assert isinstance(config.pluginmanager.get_plugin("_cov_contexts"), plugin.TestContextPlugin)


def test_a_session_without_its_options_has_not_loaded_it(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("-p", "no:pytest_cov")
    assert not cov.is_loaded(config)


class Config:
    """As much of a configuration as is used."""

    def __init__(self, **options: object) -> None:
        self.option = SimpleNamespace(**options)
        self.pluginmanager = pytest.PytestPluginManager()


def test_a_stand_in_needs_no_more_than_these_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace()
    engine = SimpleNamespace(CovController=lambda options, config, node_id: made)
    contexts = SimpleNamespace(TestContextPlugin=lambda controller: object())
    monkeypatch.setitem(sys.modules, "pytest_cov.engine", engine)
    monkeypatch.setitem(sys.modules, "pytest_cov.plugin", contexts)
    config: Any = Config(cov_source=[], cov_context="test")
    assert cov.is_loaded(config)
    assert not cov.is_measuring(config)
    controller = cov.make_controller(config, "a measurement")
    assert (made.cov, made.started) == ("a measurement", True)
    cov.register(config, object(), controller)
    assert cov.is_measuring(config)
    assert config.pluginmanager.has_plugin(cov.CONTEXTS)
