"""What a child's session changes in the process is undone, where a test runs it in this one."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest

from pytest_cudafork.isolate import coverage_data


@pytest.fixture
def session_undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a session changes: faulthandler, arguments and environment.

    What it freezes stays so, as what was there before (``tests/support/frozen_objects.py``).
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second
    monkeypatch.setattr(coverage_data, "current", lambda: None)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    environ = dict(os.environ)
    enabled = faulthandler.is_enabled()
    yield
    if enabled:
        faulthandler.enable(file=2)
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
