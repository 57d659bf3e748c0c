"""What SIGTERM, Ctrl-C and time limits mean to a session while a test runs in its own process.

SIGTERM raises; who waits for the child ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.plugins import timeout
from pytest_cudafork.compat.unpatched import contextlib, signal, threading
from pytest_cudafork.process import signals
from pytest_cudafork.process.forking import fault_watchdog


class _Terminated(BaseException):
    """SIGTERM came; no ``Exception``, which code that is at work in that moment may swallow."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def forget() -> None:
    """Give SIGTERM back what it meant, in a process forked while a child was waited for."""
    if written_in_c.signal_handler(signal.SIGTERM) is _terminate:
        written_in_c.set_signal_handler(signal.SIGTERM, signal.SIG_DFL)


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
    if not here or written_in_c.signal_handler(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    try:
        try:
            written_in_c.set_signal_handler(signal.SIGTERM, _terminate)
            yield
        finally:
            written_in_c.set_signal_handler(signal.SIGTERM, signal.SIG_DFL)
    except _Terminated:  # it may come in the last moment, too
        written_in_c.set_signal_handler(signal.SIGTERM, signal.SIG_DFL)
        raise pytest.exit.Exception(
            f"SIGTERM came while {test} ran in its own process, which was killed",
            returncode=128 + signal.SIGTERM,
        ) from None


def held_back() -> signals.Held:
    """Return what holds back Ctrl-C and SIGTERM, as they are handled here."""
    return signals.Held((signal.default_int_handler, _terminate))


def stop_time_limit(item: pytest.Item) -> None:
    """Stop the time limits that pytest-timeout and pytest have begun here.

    They begin others in the child. The one of pytest (``faulthandler_timeout``) is a thread with a
    lock, for which a forked child would wait for ever.
    """
    timeout.cancel_timer(item)
    try:
        armed = float(item.config.getini("faulthandler_timeout") or 0) > 0
    except (KeyError, ValueError):  # -p no:faulthandler
        return
    if armed:
        fault_watchdog.cancel()
