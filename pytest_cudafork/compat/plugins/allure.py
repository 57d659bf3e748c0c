"""What the plugin uses of allure-pytest that has no public name.

allure-pytest gathers the result of a test while it runs, so that of an isolated one in its process,
which writes it into the directory of results. The pytest process has begun one, too: that must not
be written, unless the process of the test has died.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

LISTENER = "allure_listener"
"""The name under which allure-pytest registers what gathers results."""


def drop_result(item: pytest.Item) -> None:
    """Write nothing about a test whose own process has written its result.

    ``_cache`` of the listener holds the results that have begun.
    """
    listener: Any = item.config.pluginmanager.get_plugin(LISTENER)
    if listener is not None:
        uuid = listener._cache.pop(item.nodeid)
        if uuid is not None:
            listener.allure_logger.drop_test(uuid)


def enter_failure(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let the result that was begun for a test say what this report says.

    Its names, parameters and labels come from the listener's own hooks, ``pytest_runtest_setup``
    and ``pytest_runtest_teardown``; the status from ``allure_pytest.utils``.
    """
    listener: Any = item.config.pluginmanager.get_plugin(LISTENER)
    if listener is None:
        return
    for hook in (listener.pytest_runtest_setup, listener.pytest_runtest_teardown):
        for _ in hook(item):
            pass
    model: Any = sys.modules["allure_commons.model2"]
    result = listener.allure_logger.get_test(listener._cache.get(item.nodeid))
    # a failed assertion is a failure in its words, the end of a process is none
    result.status = model.Status.SKIPPED if report.skipped else model.Status.BROKEN
    message, _, _ = report.longreprtext.partition("\n")
    result.statusDetails = model.StatusDetails(message=message, trace=report.longreprtext)
    result.start, result.stop = (int(1000 * when) for when in (report.start, report.stop))
