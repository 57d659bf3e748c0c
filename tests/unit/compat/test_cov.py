"""Names of pytest-cov, which is loaded for a session that does not run."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.compat import cov
from tests.unit.compat import require

plugin: Any = pytest.importorskip("pytest_cov.plugin")
engine: Any = pytest.importorskip("pytest_cov.engine")


def test_pytest_cov_still_has_the_names() -> None:
    require("pytest-cov", engine, "CovController", "the fixture cov in a child")
    require("pytest-cov", plugin, "TestContextPlugin", "--cov-context in a child")


def test_a_session_that_is_measured_is_known_by_the_plugins_name(
    pytester: pytest.Pytester,
) -> None:
    config = pytester.parseconfig("-p", "pytest_cov.plugin", "--cov=anything")
    assert cov.is_loaded(config)
    assert cov.is_measuring(config), f"pytest-cov no longer registers itself as {cov.PLUGIN!r}"


def test_a_plugin_takes_its_place(pytester: pytest.Pytester) -> None:
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
