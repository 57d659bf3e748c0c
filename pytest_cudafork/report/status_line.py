"""What a long check of a graph is at, on a terminal that somebody sees.

It stands to the right of what pytest has written, while the check runs, and is wiped out before
pytest writes on. There is none in a log, with ``-q``, with ``-s``, where tests write to the
terminal themselves, nor with a debugger. Tests in processes of their own and in workers of
pytest-xdist have no terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

from pytest_cudafork.capture.interface.progress import shown_by
from pytest_cudafork.compat.unpatched import contextlib, os, time
from pytest_cudafork.settings.option import uses_debugger

AFTER_SECONDS = 1.0
"""A check shows nothing before its test has run for so long."""
_SAVE, _RESTORE, _WIPE = "\x1b7", "\x1b8", "\x1b[K"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


def terminal_of(config: pytest.Config) -> int | None:
    """Return the descriptor of a terminal that somebody sees and only pytest writes to, or None."""
    option = config.option
    if uses_debugger(config) or option.capture not in ("fd", "sys") or option.verbose < 0:
        return None
    if not config.pluginmanager.has_plugin("terminalreporter"):
        return None
    try:
        fd = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # replaced, closed
        return None
    return fd if os.isatty(fd) and config.get_terminal_writer().hasmarkup else None


class StatusLine:
    """The plugin object."""

    def __init__(self) -> None:
        self._fd = -1
        self._pid = os.getpid()
        self._began = 0.0
        self._is_shown = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Begin, if there is such a terminal: the copy of it is not captured with the tests."""
        fd = terminal_of(session.config)
        if fd is None:
            return
        undo = contextlib.ExitStack()
        session.config.add_cleanup(undo.close)
        self._fd = os.dup(fd)
        undo.callback(os.close, self._fd)
        undo.enter_context(shown_by(self.show))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Count the time of a test."""
        self._began = time.monotonic()
        try:
            return (yield)
        finally:
            self.wipe()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self) -> None:
        """Make room for what is written of a phase."""
        self.wipe()

    def show(self, what: str) -> None:
        """Show what a check is at, if its test has been running for a while."""
        if os.getpid() != self._pid or time.monotonic() - self._began < AFTER_SECONDS:
            return
        self._is_shown = True
        text = "".join(c if c.isprintable() else "?" for c in what)
        self._write(f"{_SAVE}{_NO_WRAP}  {text}{_WIPE}{_WRAP}{_RESTORE}")

    def wipe(self) -> None:
        """Take it away."""
        if self._is_shown and os.getpid() == self._pid:
            self._is_shown = False
            self._write(_WIPE)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            os.write(self._fd, text.encode("ascii", "backslashreplace"))
