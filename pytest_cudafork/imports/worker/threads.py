"""Threads that an import leaves running: which line started them, and how long to wait for them.

A thread may touch CUDA after the import statement has returned, so the process that imports waits
a little before it answers. Only threads of ``threading`` are seen, not those that C code or
``_thread`` starts.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable
from types import FrameType

from pytest_cudafork.imports.values.left_behind import RunningThread
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.observe.base.stacks import outward
from pytest_cudafork.observe.story.packages import package_of

_MOST_SECONDS = 5.0
"""How long one import is waited for; a thread that serves for ever would never end."""
_MOST_IN_ALL = 60.0
"""How long the imports of one fork server are waited for with no result, taken together."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_MOST_NAME = 60
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class WaitBudget:
    """How long threads are waited for: after one import, and after all imports of one fork server.

    A fork server hands its budget on to the processes that it forks, and updates it from what these
    report: a thread that once did not end in time is not waited for again, wherever else the same
    line starts it.
    """

    def __init__(self, settings: AuditSettings, endless: Iterable[str] = ()) -> None:
        self._settings = settings
        self._left = _MOST_IN_ALL
        self.endless = set(endless)
        """The lines whose threads do not end in time, as ``file:line``."""

    def seconds_after(self, module: str, spent: float) -> float:
        """Return how long to wait after a module's import that took ``spent`` seconds."""
        limit = self._settings.limit_of(module)
        return max(0.0, min(_MOST_SECONDS, self._left, (limit - spent) / 2))

    def spend(self, waited: float, running: Iterable[RunningThread]) -> None:
        """Take note of a wait that showed no touch, and of the threads that ran on after it."""
        self._left -= waited
        if waited:
            self.endless.update(thread.where for thread in running if not thread.daemon)


class Threads:
    """Notes which threads are started, and where; made before the import."""

    def __init__(self) -> None:
        self._enumerate = threading.enumerate
        self._sleep = time.sleep
        self._clock = time.monotonic
        self._before = [threading.main_thread(), *threading.enumerate()]
        self._places: dict[int, tuple[weakref.ref[threading.Thread], str]] = {}
        """Where each was started, by its identity, which may be another one's when it is gone."""

    def watch(self) -> None:
        """Note from now on, in a process in which nothing else will be imported."""
        start, places = threading.Thread.start, self._places
        frame_of, refer = sys._getframe, weakref.ref

        def noting_start(thread: threading.Thread) -> None:
            places[id(thread)] = refer(thread), place_of(frame_of(1))
            start(thread)

        functools.update_wrapper(noting_start, start)
        threading.Thread.start = noting_start  # type: ignore[method-assign, assignment]

    def running(self) -> list[RunningThread]:
        """Return those that have come and still run."""
        return [
            RunningThread(_shown(each.name), self._place(each), bool(each.daemon))
            for each in self._enumerate()
            if not any(each is known for known in self._before)
        ]

    def _place(self, thread: threading.Thread) -> str:
        """Return where a thread was started; "" where that was not seen."""
        started, place = self._places.get(id(thread), (None, ""))
        return place if started is not None and started() is thread else ""

    def wait(self, seconds: float, endless: Collection[str], is_over: Callable[[], bool]) -> float:
        """Wait for those that an interpreter would wait for at its end.

        Args:
            seconds: For how long at most.
            endless: The lines whose threads are not waited for.
            is_over: Whether nothing more is to be learned.

        Returns:
            How long it took; 0.0 if there was none.

        """
        began, pause, waited = self._clock(), _FIRST_PAUSE, 0.0
        while waited < seconds and self._is_awaited(endless) and not is_over():
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            waited = self._clock() - began
        return waited

    def _is_awaited(self, endless: Collection[str]) -> bool:
        return any(not each.daemon and each.where not in endless for each in self.running())


def place_of(frame: FrameType | None) -> str:
    """Return the innermost line outside the standard library that leads to a call."""
    first = ""
    for each in outward(frame):
        path = each.f_code.co_filename
        if path.startswith(_HERE):
            break
        place = f"{path}:{each.f_lineno}"
        if package_of(path) != "<stdlib>":
            return place
        first = first or place
    return first


def _shown(name: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in str(name))
    return text if len(text) <= _MOST_NAME else f"{text[:_MOST_NAME]}..."
