"""What SIGTERM and Ctrl-C mean to a session while an isolated test runs.

SIGTERM raises; who waits for the child ends it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest


class _EndSession:
    """The handler."""

    def __init__(self, test: str) -> None:
        self._test = test

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise pytest.exit.Exception(
            f"SIGTERM came while {self._test} ran in its own process, which was killed",
            returncode=128 + signal.SIGTERM,
        )


def forget() -> None:
    """Give SIGTERM back what it meant, in a process forked while a child was waited for."""
    if isinstance(signal.getsignal(signal.SIGTERM), _EndSession):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def interrupted(item: pytest.Item) -> Iterator[None]:
    """Say which test an interrupt met; pytest names the line of this package that waited for it."""
    try:
        yield
    except KeyboardInterrupt:
        terminal: Any = item.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            path, line, _ = item.location
            terminal.ensure_newline()
            terminal.write_line(
                f"interrupted: {item.nodeid} ({path}:{(line or 0) + 1}) ran in its own process, "
                "which was killed"
            )
        raise


@contextlib.contextmanager
def sigterm_ends_session(test: str) -> Iterator[None]:
    """Let SIGTERM end the session as ``pytest.exit`` does, instead of killing it without a word.

    Only while a child is waited for, only in the main thread, which alone may handle signals, and
    only where nobody else handles the signal or has it ignored.

    Raises:
        pytest.exit.Exception: SIGTERM came; the exit status is the one a shell gives for it.

    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    signal.signal(signal.SIGTERM, _EndSession(test))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
