"""Owns what other plugins and isolated tests need of each other. Runs in the parent.

It does not know how a child is run. pytest-timeout and pytest-rerunfailures do their work inside
the process of the test, as they would in the pytest process; here stands what is left to do.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest


def stop_time_limit(item: pytest.Item) -> None:
    """Stop the time limit that pytest-timeout has begun here; it begins another in the child."""
    cancel = getattr(item.config.hook, "pytest_timeout_cancel_timer", None)
    if cancel is not None:
        cancel(item=item)


def announce_rerun(item: pytest.Item) -> None:
    """Tell this session that a test, which runs in a child, begins once more."""
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    plugin: Any = sys.modules.get("pytest_rerunfailures")
    # as the plugin does in its own process
    forget = getattr(plugin, "_remove_failed_subtest_reports_from_stats", None)
    if forget is not None:
        forget(item.config, item.session, item.nodeid)
