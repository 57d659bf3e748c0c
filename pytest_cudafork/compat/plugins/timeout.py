"""What the plugin uses of pytest-timeout beyond the hooks that it documents."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest


def is_loaded() -> bool:
    """Whether pytest-timeout has been imported."""
    return "pytest_timeout" in sys.modules


def cancel_timer(item: pytest.Item) -> None:
    """Stop the time limit that pytest-timeout has begun for a test, by its own hook."""
    cancel = getattr(item.config.hook, "pytest_timeout_cancel_timer", None)
    if cancel is not None:
        cancel(item=item)


def set_canceller(item: Any, cancel: Callable[[], None]) -> None:
    """Say what ends a time limit: pytest-timeout calls the item's ``cancel_timeout``."""
    item.cancel_timeout = cancel


def is_held_by_debugger(settings: Any) -> bool:
    """Whether a time limit does not count because a debugger runs: ``pytest_timeout.is_debugging``.

    ``settings`` is what the hook ``pytest_timeout_set_timer`` was given.
    """
    plugin: Any = sys.modules["pytest_timeout"]
    return not settings.disable_debugger_detection and bool(plugin.is_debugging())


def failure_message(seconds: float) -> str:
    """Return pytest-timeout's own sentence: ``pytest_timeout.PYTEST_FAILURE_MESSAGE``."""
    plugin: Any = sys.modules["pytest_timeout"]
    message: str = plugin.PYTEST_FAILURE_MESSAGE % seconds
    return message
