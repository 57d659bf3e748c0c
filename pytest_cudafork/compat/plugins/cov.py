"""What the plugin uses of pytest-cov; only its options, marker and fixtures are public."""

from __future__ import annotations

import sys
from typing import Any

import pytest

PLUGIN = "_cov"
"""The name under which pytest-cov registers the plugin that measures."""
CONTEXTS = "_cov_contexts"
"""The name of the plugin behind ``--cov-context``."""


def is_measuring(config: pytest.Config) -> bool:
    """Whether pytest-cov measures in this session."""
    return config.pluginmanager.has_plugin(PLUGIN)


def is_loaded(config: pytest.Config) -> bool:
    """Whether pytest-cov has been imported, and this session has its options."""
    return "pytest_cov.plugin" in sys.modules and hasattr(config.option, "cov_source")


def make_controller(config: pytest.Config, measurement: Any) -> Any:
    """Return pytest-cov's controller for a measurement that runs already.

    ``pytest_cov.engine.CovController``, with its ``cov`` and ``started``.
    """
    import importlib

    # not by name: pytest-cov is no dependency
    engine: Any = importlib.import_module("pytest_cov.engine")
    controller = engine.CovController(config.option, config, None)
    controller.cov = measurement
    controller.started = True
    return controller


def register(config: pytest.Config, plugin: object, controller: Any) -> None:
    """Register a plugin in pytest-cov's place, and the contexts of tests if they are asked for.

    ``pytest_cov.plugin.TestContextPlugin`` is the one for the contexts.
    """
    config.pluginmanager.register(plugin, PLUGIN)
    if getattr(config.option, "cov_context", None) == "test":
        contexts = sys.modules["pytest_cov.plugin"].TestContextPlugin(controller)
        config.pluginmanager.register(contexts, CONTEXTS)
