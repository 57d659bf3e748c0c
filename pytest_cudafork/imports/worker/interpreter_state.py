"""The interpreter's own state, noted before a module is imported and restored afterwards.

A module may replace ``os`` functions, ``sys.modules``, tracers or timers while it is imported; the
audit needs them to say what happened.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
from typing import Any

from pytest_cudafork.settings import environment

_DECIDING = (environment.NVML_CHECK, environment.VISIBLE_GPUS)
"""Variables by which torch and the driver decide what the same question touches, and answer."""
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class LoadedModules:
    """The modules of a process, and what is in ``os``.

    Made before a fork where there is one: to look at thousands of names makes the kernel copy the
    pages they lie on, which takes a child longer than most imports.
    """

    def __init__(self) -> None:
        self.modules = dict(sys.modules)
        self.os = dict(vars(os))
        self._newest = next(reversed(self.modules))

    def added(self) -> list[str] | None:
        """Return the names that have come since, in order; None if one has gone."""
        names: list[Any] = []
        try:
            for name in reversed(sys.modules):
                if name is self._newest:
                    break
                names.append(name)
        except RuntimeError:  # a thread imports something meanwhile
            return None
        if len(sys.modules) != len(self.modules) + len(names):
            return None
        return [name for name in reversed(names) if type(name) is str]

    def looked_up(self) -> list[str]:
        """Return the names that are there now and were not, where ``added`` has no answer."""
        names = list(sys.modules)
        return [name for name in names if type(name) is str and name not in self.modules]


class InterpreterState:
    """The state of the interpreter without which nothing can be reported; made before the import.

    A module may do anything, and some do: a library of green threads replaces half of ``os``.
    """

    def __init__(self, loaded: LoadedModules) -> None:
        self._modules = sys.modules
        self._import = builtins.__import__
        self._loaded = loaded
        self._limit = sys.getrecursionlimit()
        self._set_limit = sys.setrecursionlimit
        self._tracers = ((sys.gettrace, sys.settrace), (sys.getprofile, sys.setprofile))
        self._set_timer = signal.setitimer
        self._facts = self._look()
        self._environ = os.environ
        self._deciding = self._variables()

    def added(self) -> list[str]:
        """Return the names of the modules that have come since."""
        added = self._loaded.added() if type(sys.modules) is dict else None
        return self._loaded.looked_up() if added is None else added

    def has_changed(self) -> bool:
        """Whether anything is not as it was, so that this process cannot serve as a fork server."""
        if sys.modules is not self._modules or builtins.__import__ is not self._import:
            return True
        if any(vars(os).get(name) is not value for name, value in self._loaded.os.items()):
            return True
        return self._loaded.added() is None or self._look() != self._facts

    def decides(self) -> bool:
        """Whether a variable was set, or taken away, by which it is decided what touches CUDA."""
        return self._variables() != self._deciding

    def _variables(self) -> list[str | None]:
        return [self._environ.get(name) for name in _DECIDING]

    def _look(self) -> tuple[Any, ...]:
        try:
            folder = os.getcwd()
        except OSError:  # it was removed
            folder = ""
        return (
            folder,
            os.getpgrp(),
            [get() for get, _ in self._tracers],
            [signal.getitimer(timer)[0] > 0 for timer in _TIMERS],
            signal.getsignal(signal.SIGCHLD),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            sys.getrecursionlimit() < self._limit,
        )

    def restore(self) -> None:
        """Make it work again, in a process in which nothing else will be imported."""
        for _, unset in self._tracers:
            unset(None)
        for timer in _TIMERS:
            self._set_timer(timer, 0)
        self._set_limit(max(self._limit, sys.getrecursionlimit()))
        builtins.__import__ = self._import
        vars(os).update(self._loaded.os)
        sys.modules = self._modules
        if self._loaded.added() is None:
            for name, module in self._loaded.modules.items():
                self._modules.setdefault(name, module)
