"""Forks and tests that begin above a short stack, so that a test may recurse as deeply as it can.

Python counts frames, and a test that needs nearly all that it is allowed must find no more of them
below it than in a process without this package. So what leads to a fork is a generator: it says
that a fork is due, and who goes through its steps makes it, at the level of a hook. The frames of
the generator wait and do not count, in the child neither, which goes on from there. In the same way
a child's work is a generator of the calls that it has to make.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from os import fork  # where the fork guard puts itself in its place
from typing import TypeVar

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.process.forking import fault_watchdog

EXIT_LOST = 70
"""Exit status of a child that could not deliver what it had to say."""
Result = TypeVar("Result")


class Turn:
    """A call that a child's work consists of; what it raises is left here for who asked for it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.error: BaseException | None = None


class DueFork:
    """A fork that is to be made by who goes through the steps that led here."""

    def __init__(self, begin: Callable[[], Iterator[Turn]]) -> None:
        """``begin`` is called in the child; it returns what is to be done there."""
        self._begin = begin
        self.pid = -1
        """The child's process id, in the parent, once it exists."""
        self.error: BaseException | None = None
        """Why there is none; raised where the fork was asked for."""

    def make(self) -> bool:
        """Fork; True in the child, which has to go through ``turns`` next, and then to end."""
        __tracebackhide__ = True  # of a refusal the user's line says more
        try:
            self.pid = fault_watchdog.fork_without(fork)
        except BaseException as error:
            self.error = error
        return self.pid == 0

    def turns(self) -> Iterator[Turn]:
        """Begin what the child has to do."""
        return self._begin()


Steps = Generator[DueFork, None, Result]
"""What may have to fork on its way to a result."""


def perform(steps: Steps[Result]) -> Result:
    """Go through steps; the children that they fork begin here."""
    __tracebackhide__ = True
    while True:
        try:
            due = next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        if due.make():
            break
    # ``steps`` is kept: what it has begun is the parent's to end
    try:
        take_turns(due.turns())
    finally:
        os._exit(EXIT_LOST)


def take_turns(turns: Iterator[Turn]) -> None:
    """Make the calls that a child's work consists of."""
    for turn in turns:
        try:
            turn.call()
        except BaseException as error:
            turn.error = error
