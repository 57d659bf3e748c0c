"""Where this process comes from: whether it was forked from an initialized one, and by which fork.

The record is kept by at-fork handlers, so it is true in every descendant made by ``os.fork``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType

from pytest_cudafork.compat.unpatched import os, threading
from pytest_cudafork.observe.driver.probe import Driver, ask_driver, forked_without_exec


def _driver_initialized() -> bool:
    return ask_driver().driver is Driver.INITIALIZED


class Lineage:
    """Where this process comes from, kept true in every descendant made by ``os.fork``.

    Made once per process, see ``process_lineage``.
    """

    def __init__(self) -> None:
        self.poisoned_by: int | None = None
        """Pid of the nearest ancestor that was initialized, or itself poisoned, when it forked."""
        self.forked_by = ""
        """Ledger id of the fork that made this process, where that fork was recorded."""
        self._next_forks: dict[int, str] = {}
        """The forks that are about to happen, by the thread."""
        self.forked_unwatched = forked_without_exec() is True
        """Whether this process was forked before this record began."""
        self.unclean: Callable[[], bool] = _driver_initialized
        """Asked before each fork: would a child be poisoned?"""
        self.on_poisoned_child: Callable[[], None] | None = None
        self.on_unguarded_fork: Callable[[FrameType], bool] | None = None
        """Called with the forking frame before a fork of an unclean process that nobody has
        announced; returns whether its child goes on to exec."""
        self.starts_program = False
        """Whether this process was forked for the sake of an exec, as far as that is known."""
        self._parent = os.getpid()
        self._parent_unclean = False
        self._will_exec: set[int] = set()
        """The threads whose next fork is made for the sake of an exec."""
        os.register_at_fork(
            before=self._before,
            after_in_parent=self._in_parent,
            after_in_child=self._in_child,
        )

    @property
    def next_fork(self) -> str:
        """Set by the fork guard: the ledger id of the fork that this thread is about to make."""
        return self._next_forks.get(threading.get_ident(), "")

    @next_fork.setter
    def next_fork(self, fork: str) -> None:
        if fork:
            self._next_forks[threading.get_ident()] = fork
        else:
            self._next_forks.pop(threading.get_ident(), None)

    def _before(self) -> None:
        self._parent = os.getpid()
        self._parent_unclean = self.poisoned_by is not None or self.unclean()
        unguarded = self._parent_unclean and not self.next_fork
        if unguarded and self.on_unguarded_fork and self.on_unguarded_fork(sys._getframe(1)):
            self._will_exec.add(threading.get_ident())

    def _in_parent(self) -> None:
        self.next_fork = ""  # a later fork that bypasses the guard is another one
        self._will_exec.discard(threading.get_ident())

    def _in_child(self) -> None:
        self.forked_by = self.next_fork
        self.starts_program = threading.get_ident() in self._will_exec
        self._will_exec.clear()
        self._next_forks.clear()  # the other threads do not exist here
        if self._parent_unclean:
            self.poisoned_by = self._parent
            if self.on_poisoned_child is not None:
                self.on_poisoned_child()


@functools.cache
def process_lineage() -> Lineage:
    """Return this process's one record, which begins with the first call.

    At-fork handlers cannot be taken back, so a process must not register them again and again.
    """
    return Lineage()
