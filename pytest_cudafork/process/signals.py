"""What a process that has children makes of signals: SIGCHLD, and those that are to end it.

A program may ignore SIGCHLD, and then the kernel forgets how children ended; or handle it by
waiting for whatever child has ended, as servers do. Either takes the exit status away from who
needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import contextlib, signal, threading

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
            self._former = former  # first: the handler of another signal may raise after it is set
            try:
                written_in_c.set_signal_handler(signal.SIGCHLD, signal.SIG_DFL)
            except ValueError:  # not the main thread
                self._former = None

    def end(self) -> None:
        """Give it the meaning again that it had."""
        if self._former is not None:
            written_in_c.set_signal_handler(signal.SIGCHLD, self._former)
            self._former = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Take the signal for a while; its handler then looks for what has ended meanwhile."""
        try:
            self.begin()
            yield
        finally:
            try:
                handled = callable(self._former)
                self.end()
            except BaseException:  # by the handler of another signal, as pytest-timeout's may be
                self.end()
                raise
            if handled:
                signal.raise_signal(signal.SIGCHLD)


class Held:
    """SIGTERM and Ctrl-C, held back while what a child has said is passed on.

    A child that works ahead may have finished tests of which nothing is shown yet. So the signal
    counts where the child is waited for; a second one counts at once.
    """

    def __init__(self, handlers: Sequence[Any] = ()) -> None:
        """Take the handlers that can wait; others are left alone."""
        self._handlers = handlers
        self._waits = False
        self._came: tuple[int, Any] | None = None
        """The signal that came, and its handler."""
        self.struck = False
        """Whether the last wait was ended by one."""

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Hold them back for a while."""
        former: dict[int, Any] = {}
        try:
            if self._handlers and threading.current_thread() is threading.main_thread():
                for one in (signal.SIGINT, signal.SIGTERM):
                    number, handler = int(one), written_in_c.signal_handler(one)
                    if handler in self._handlers:
                        former[number] = handler
                        take = functools.partial(self._take, handler)
                        written_in_c.set_signal_handler(number, take)
            yield
        finally:
            try:
                _put_back(former)
            except BaseException:  # by the handler of another signal, as pytest-timeout's may be
                _put_back(former)
                raise

    def _take(self, handler: Any, number: int, frame: FrameType | None) -> None:
        again, self._came = self._came is not None, (number, handler)
        if self._waits or again:
            handler(number, frame)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let them count."""
        self._waits = True
        try:
            self.strike()
            yield
        except BaseException:
            self.struck = self._came is not None
            raise
        finally:
            self._waits = False

    @property
    def came(self) -> bool:
        """Whether one has come that does not count yet."""
        return self._came is not None

    def strike(self) -> None:
        """Let one count that has come."""
        if self._came is not None:
            number, handler = self._came
            handler(number, None)


def _put_back(former: Mapping[int, Any]) -> None:
    for number, handler in former.items():
        written_in_c.set_signal_handler(number, handler)
