"""SIGCHLD in a process that waits for children of its own.

A program may ignore it, and then the kernel forgets how children ended; or handle it by waiting for
whatever child has ended, as servers do. Either takes the exit status away from who needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, signal, threading


class ChildSignal:
    """Takes SIGCHLD from the program from ``begin`` to ``end``, where Python can give it back."""

    def __init__(self) -> None:
        self._former: Any = None

    def begin(self) -> None:
        """Give the signal its default meaning; only the main thread can, elsewhere it stays."""
        here = threading.current_thread() is threading.main_thread()
        former = signal.getsignal(signal.SIGCHLD)  # None: set by C code, which Python cannot keep
        if here and former not in (None, signal.SIG_DFL):
            self._former = former
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def end(self) -> None:
        """Give it the meaning again that it had."""
        former, self._former = self._former, None
        if former is not None:
            signal.signal(signal.SIGCHLD, former)

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
