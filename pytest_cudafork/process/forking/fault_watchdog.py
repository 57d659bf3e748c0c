"""faulthandler's watchdog across forks: it goes on in the parent, and is not there in the child.

``faulthandler.dump_traceback_later`` starts a thread that holds a lock until it is cancelled. A
forked child has the lock without the thread: what cancels a watchdog there, or begins another one,
waits for ever, and pytest cancels it whenever a test fails. So it is cancelled before a fork and
begun again after it. Python does not tell whether there is one, nor how much of its time is left:
that is noted, from when the plugin is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from pytest_cudafork.compat.unpatched import os, time

_THREAD_SECONDS = 5.0
"""How long threads that were told to end may take."""
_FAULTHANDLER: Any = import_module("faulthandler")  # itself, as functions of it are replaced
_NAMES = ("dump_traceback_later", "cancel_dump_traceback_later")


class _Armed(NamedTuple):
    """A watchdog as it was begun; ``end`` is when it comes, ``fd`` what it writes to."""

    timeout: float
    repeat: bool
    file: Any
    exit: bool
    end: float
    fd: int

    def begin_again(self, begin: Callable[..., None]) -> bool:
        """Begin it with what is left of its time, if it has not come; one that repeats, anew."""
        left = self.timeout if self.repeat else self.end - time.monotonic()
        if left < 1e-6:  # the unit that it counts in
            return False
        for file in (self.file, self.fd):  # the file object may be closed by now
            with suppress(ValueError, OSError):
                begin(left, self.repeat, file, self.exit)
                return True
        return False


class _Noting:
    """What stands in for the two functions, and notes what they begin and cancel."""

    def __init__(self, begin: Callable[..., None], cancel: Callable[[], None]) -> None:
        self._begin_thread, self._cancel = begin, cancel
        self._threads: set[str] = set()  # those of watchdogs, until they are seen to have ended
        self.armed: _Armed | None = None

    def dump_traceback_later(
        self,
        timeout: float,
        repeat: bool = False,
        file: Any = None,
        exit: bool = False,  # noqa: A002  as the function has it
    ) -> None:
        """Begin a watchdog."""
        file = sys.stderr if file is None else file
        self._begin(timeout, repeat, file, exit)
        fd = file if isinstance(file, int) else file.fileno()
        end = time.monotonic() + timeout
        self.armed = _Armed(timeout, bool(repeat), file, bool(exit), end, fd)

    def cancel_dump_traceback_later(self) -> None:
        """Cancel it; its thread may end a little later."""
        self.armed = None
        self._cancel()

    def wait_for_threads(self) -> None:
        """Wait until the threads of all that were cancelled are no longer counted."""
        deadline = time.monotonic() + _THREAD_SECONDS
        while self._threads & _threads_here() and time.monotonic() < deadline:
            time.sleep(0.0001)
        self._threads.clear()

    def fork(self, fork: Callable[[], int], armed: _Armed) -> int:
        """Fork with the watchdog cancelled; begin it again in the parent."""
        __tracebackhide__ = True
        cancel()
        pid = -1
        try:
            pid = fork()
        finally:
            if pid != 0 and armed.begin_again(self._begin):
                self.armed = armed
        return pid

    def _begin(self, timeout: float, repeat: bool, file: Any, exit: bool) -> None:  # noqa: A002
        before = _threads_here()
        self._begin_thread(timeout, repeat, file, exit)
        self._threads = self._threads & before | _threads_here() - before


def note() -> Callable[[], None] | None:
    """Note from now on what begins and cancels the watchdog; return what ends that.

    None where it is noted already.
    """
    if _noting() is not None:
        return None
    before = [getattr(_FAULTHANDLER, name) for name in _NAMES]
    noting = _Noting(*before)
    for name in _NAMES:
        setattr(_FAULTHANDLER, name, getattr(noting, name))

    def end() -> None:
        for name, original in zip(_NAMES, before, strict=True):
            if getattr(_FAULTHANDLER, name) == getattr(noting, name):
                setattr(_FAULTHANDLER, name, original)

    return end


def cancel() -> None:
    """Cancel a watchdog, and wait until the threads of all that were cancelled are gone."""
    _FAULTHANDLER.cancel_dump_traceback_later()
    noting = _noting()
    if noting is not None:
        noting.wait_for_threads()


def fork_without(fork: Callable[[], int]) -> int:
    """Fork by ``fork`` with no watchdog in the way; return or raise what it does."""
    __tracebackhide__ = True
    noting = _noting()
    if noting is None or noting.armed is None:
        return fork()
    return noting.fork(fork, noting.armed)


def _noting() -> _Noting | None:
    owner = getattr(_FAULTHANDLER.dump_traceback_later, "__self__", None)
    return owner if isinstance(owner, _Noting) else None


def _threads_here() -> set[str]:
    try:
        return set(os.listdir("/proc/self/task"))
    except OSError:
        return set()
