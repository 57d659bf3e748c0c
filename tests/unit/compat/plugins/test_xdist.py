"""What pytest-xdist says of its end, of which pytest knows nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins.xdist import why_given_up


def test_it_is_a_name_that_the_plugin_has() -> None:
    dsession = pytest.importorskip("xdist.dsession")
    options = SimpleNamespace(debug=False, maxfail=0, maxworkerrestart="0", numprocesses=1)
    config = SimpleNamespace(
        option=options,
        getvalue=lambda name: getattr(options, name),
        pluginmanager=SimpleNamespace(getplugin=lambda name: None),
    )
    assert dsession.DSession(config)._summary_report is None


def test_the_controller_says_why_no_more_tests_run() -> None:
    class Controller:
        _summary_report: str | None = None

    manager = pytest.PytestPluginManager()

    class Config:
        pluginmanager = manager

    config: Any = Config()
    assert why_given_up(config) == ""
    controller = Controller()
    manager.register(controller, "dsession")
    assert why_given_up(config) == ""
    controller._summary_report = "maximum crashed workers reached: 4"
    assert why_given_up(config) == "maximum crashed workers reached: 4"
