"""The random numbers of children that are forked from one process.

A generator that the user's code has seeded goes on from there in every
child, as it would in a run of that test alone; one that nobody seeded differs from child to child,
as in any two processes. torch's generator is left alone: in most releases its default seed is a
constant, and whether somebody has set it cannot be told.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_cudafork.compat import numpy_internals
from pytest_cudafork.compat.unpatched import random


class Randomness:
    """Remembers whether the user's code has seeded the process-wide generators."""

    def __init__(self, start: tuple[Any, ...] | None = None) -> None:
        """Begin before the user's code is imported, or tell Python's state at that time."""
        self._start = start or random.getstate()
        self._python: tuple[Any, ...] | None = None
        self._numpy = False

    def look(self) -> None:
        """Look what was seeded; call it before a fork, once the user's code is imported."""
        state = random.getstate()
        self._python = None if state == self._start else state
        self._numpy = numpy_internals.is_global_generator_unseeded()

    def renew(self) -> None:
        """Give a child numbers of its own where nobody has seeded, and the user's elsewhere.

        Python itself has given its own generator a new seed after the fork.
        """
        if self._python is not None:
            random.setstate(self._python)
        if self._numpy:
            sys.modules["numpy.random"].seed()
