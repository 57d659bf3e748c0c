"""Keeps the garbage collector away from what was there before the first test.

After the collection of tests that are some million objects, and they stay to the end. Each session
in this process has all of them looked through twice when it ends, which takes most of a second.
They are frozen therefore, and frozen again after each test that has unfrozen them: a check of a
graph does so when it looks for a tensor, and tests of freezing do. What modules are made of that
tests import later, as torch's compiler, is frozen as well.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Generator
from typing import Any

import pytest

_MANY_MODULES = 50


class FrozenObjects:
    """A plugin that freezes what there is after the collection, and sees to it that it stays so."""

    def __init__(self) -> None:
        self._unfreeze = gc.unfreeze
        self._frozen = False
        self._undone = False
        self._modules = 0

    def pytest_configure(self) -> None:
        """Take note of each call from now on."""
        setattr(gc, "unfreeze", self._noted)  # noqa: B010  # a function of a module

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        """Freeze, and do not look through what is made on the way."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()
            gc.collect()
            gc.freeze()
            self._frozen = True
            self._modules = len(sys.modules)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Freeze again what the test has unfrozen, its own garbage too: that is little.

        A command that a test calls here may have switched the collector off, for its process.
        """
        try:
            return (yield)
        finally:
            gc.enable()
            many = len(sys.modules) >= self._modules + _MANY_MODULES
            if self._frozen and (self._undone or many):
                if many:
                    gc.collect()
                    self._modules = len(sys.modules)
                gc.freeze()
                self._undone = False

    def pytest_unconfigure(self) -> None:
        """Let everything go at the end of the process: some libraries tell of what is left."""
        setattr(gc, "unfreeze", self._unfreeze)  # noqa: B010
        if self._frozen:
            atexit.register(self._unfreeze)

    def _noted(self) -> None:
        self._undone = True
        self._unfreeze()
