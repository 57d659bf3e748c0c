"""What a process that has children makes of signals: of those they send, and of SIGCHLD.

A program may ignore SIGCHLD, and then the kernel forgets how children ended; or handle it by
waiting for whatever child has ended, as servers do. Either takes the exit status away from who
needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import contextlib, signal

SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGVTALRM,
    signal.SIGPROF,
)


class IgnoredSignals:
    """Ignores the signals from ``begin`` to ``end``; a process that is forked inherits it."""

    def __init__(self) -> None:
        self._former: dict[signal.Signals, Any] = {}

    def begin(self) -> None:
        """Ignore them."""
        for each in SIGNALS:
            former = written_in_c.set_signal_handler(each, signal.SIG_IGN)
            self._former[each] = signal.SIG_DFL if former is None else former

    def end(self) -> None:
        """Let them have the meaning again that they had; nothing where ``begin`` was not called."""
        for each, former in self._former.items():
            written_in_c.set_signal_handler(each, former)


class ChildSignal:
    """Takes SIGCHLD from the program from ``begin`` to ``end``, where Python can give it back."""

    def __init__(self) -> None:
        self._former: Any = None

    def begin(self) -> None:
        """Give the signal its default meaning; only the main thread can, elsewhere it stays."""
        # None: set by C code, which Python cannot keep
        former = written_in_c.signal_handler(signal.SIGCHLD)
        if former not in (None, signal.SIG_DFL):
            with contextlib.suppress(ValueError):  # not the main thread
                written_in_c.set_signal_handler(signal.SIGCHLD, signal.SIG_DFL)
                self._former = former

    def end(self) -> None:
        """Give it the meaning again that it had."""
        former, self._former = self._former, None
        if former is not None:
            written_in_c.set_signal_handler(signal.SIGCHLD, former)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Take the signal for a while; its handler then looks for what has ended meanwhile."""
        self.begin()
        handled = callable(self._former)
        try:
            yield
        finally:
            self.end()
            if handled:
                signal.raise_signal(signal.SIGCHLD)
