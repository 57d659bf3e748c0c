"""pytest-cov's part in a child that has a session of its own.

There pytest-cov itself is off, as it would erase the data of the session, and report; the child is
measured by ``coverage_data.py``. What a test can ask of pytest-cov works all the same: the marker
and the fixture ``no_cover``, the fixture ``cov``, and ``--cov-context``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import cov
from pytest_cudafork.isolate import coverage_data


class CovStandIn:
    """The plugin ``_cov`` of a child."""

    def __init__(self, controller: Any) -> None:
        self.cov_controller = controller

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure nothing while a test runs that does not want it."""
        __tracebackhide__ = True
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("no_cover") is None and "no_cover" not in fixtures:
            return (yield)
        self.cov_controller.pause()
        try:
            return (yield)
        finally:
            self.cov_controller.resume()


def stand_in(config: pytest.Config) -> None:
    """Register what stands in for pytest-cov, if that is loaded and something is measured."""
    measurement = coverage_data.current()
    if measurement is None or not cov.is_loaded(config):
        return
    controller = cov.make_controller(config, measurement)
    cov.register(config, CovStandIn(controller), controller)
