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
        self._unwatched = forked_without_exec() is True
        self.unclean: Callable[[], bool] = _driver_initialized
        """Asked before each fork: would a child be poisoned?"""
        self.on_poisoned_child: Callable[[], None] | None = None
        self.on_unguarded_fork: Callable[[FrameType], bool] | None = None
        """Called with the forking frame before a fork of an unclean process that nobody has
        announced; returns whether its child goes on to exec."""
        self.starts_program = False
        """Whether this process was forked for the sake of an exec, as far as that is known."""
        self._process = self._parent = os.getpid()
        self._parent_unclean = False
        self._asked: set[int] = set()
        """The threads that were asked for the fork that they are about to make."""
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

    @property
    def forked_unwatched(self) -> bool:
        """Whether this process was forked without a look at its parent.

        Before this record began, or where the stack left no room for the handlers: Python tells of
        an exception in one, and forks.
        """
        return self._unwatched or self._process != os.getpid()

    # The handlers call as little in Python as they can: near the limit of the stack it fails.

    def _before(self) -> None:
        me = threading.get_ident()
        self._asked.discard(me)
        self._parent = os.getpid()
        self._parent_unclean = self.poisoned_by is not None or self.unclean()
        self._asked.add(me)
        unguarded = self._parent_unclean and me not in self._next_forks
        if unguarded and self.on_unguarded_fork and self.on_unguarded_fork(sys._getframe(1)):
            self._will_exec.add(me)

    def _in_parent(self) -> None:
        me = threading.get_ident()
        self._asked.discard(me)
        self._next_forks.pop(me, None)  # a later fork that bypasses the guard is another one
        self._will_exec.discard(me)

    def _in_child(self) -> None:
        me = threading.get_ident()
        asked = me in self._asked
        self.forked_by = self._next_forks.get(me, "")
        self.starts_program = me in self._will_exec
        self._will_exec.clear()
        self._asked.clear()
        self._next_forks.clear()  # the other threads do not exist here
        self._process = os.getpid()
        if not asked:
            self._unwatched = True
        elif self._parent_unclean:
            self.poisoned_by = self._parent
            if self.on_poisoned_child is not None:
                self.on_poisoned_child()


@functools.cache
def process_lineage() -> Lineage:
    """Return this process's one record, which begins with the first call.

    At-fork handlers cannot be taken back, so a process must not register them again and again.
    """
    return Lineage()
