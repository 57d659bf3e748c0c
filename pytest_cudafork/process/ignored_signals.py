"""Which signals a process ignores whose children may send any signal to their parent."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.compat.unpatched import signal

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
            former = signal.signal(each, signal.SIG_IGN)
            self._former[each] = signal.SIG_DFL if former is None else former

    def end(self) -> None:
        """Let them have the meaning again that they had; nothing where ``begin`` was not called."""
        for each, former in self._former.items():
            signal.signal(each, former)
