"""Operators of other threads while a capture runs: they are refused or noticed, not missed.

A dispatch mode belongs to one thread, so each other thread is given a mode of its own: threads that
start meanwhile at their start, tasks of executors around the task, and threads that exist at their
next Python call (see ``profiling``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.host_work import SeesHostWork
from pytest_cudafork.capture.interface.lines import line_at_work, shown
from pytest_cudafork.capture.operators.refusal_words import Refusals
from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import tensors_in, traits_of
from pytest_cudafork.capture.software.places import known_places
from pytest_cudafork.capture.software.profiling import in_other_threads
from pytest_cudafork.compat.thread_internals import BOOTSTRAP, START, TASK
from pytest_cudafork.compat.torch_graphs.modes import (
    DispatchMode,
    count_modes,
    mode_at,
    pop_mode,
    push_mode,
)
from pytest_cudafork.compat.torch_graphs.operators import OpOverload
from pytest_cudafork.errors import CaptureFailedError
from pytest_cudafork.observe.base.stacks import frames_of_threads
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals

_WHY = (
    "a capture records the work of the thread that captures; on a GPU this work would run at once "
    "on another stream, or break the capture, and would be missing from the graph"
)
_WAITS = frozenset({"acquire", "get", "wait", "select", "poll", "sleep", "recv", "accept", "join"})
_TODO = "do this work in the capturing thread, or keep that thread idle until the capture has ended"


class _WatchMode(DispatchMode, SeesHostWork):
    """Reports operators of another thread. It stays harmless should it outlive the capture."""

    def __init__(self, report: Callable[[Any, Any], None] | None) -> None:
        super().__init__()
        self.report = report  # None: the capture has ended, or others may work
        self._here = threading.local()

    @property
    def host_works(self) -> bool:  # one mode is in several threads
        """Whether operators of this thread are the host's."""
        return bool(getattr(self._here, "host_works", False))

    @host_works.setter
    def host_works(self, works: bool) -> None:
        self._here.host_works = works

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.report is not None and not self.host_works:
            self.report(op, (args, kwargs))
        return op(*args, **(kwargs or {}))


class OtherThreads:
    """Watches them for the length of a capture; with ``allowed`` they may do what they like."""

    def __init__(self, refusals: Refusals, *, allowed: bool = False) -> None:
        self._refusals = refusals
        self._owner = threading.get_ident()
        self._on_host = known_places()
        self._young: set[int] = set()  # started within the capture
        self._mode = _WatchMode(None if allowed else self._on_operator)
        self._here = (
            threading.local()
        )  # .pushed: the mode is on the stack; .reporting: it is at work
        self._pushed_in: set[int] = set()

    @staticmethod
    def busy() -> bool:
        """Whether a capture is under way in this process."""
        return hasattr(getattr(*BOOTSTRAP), "watches")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """For the length of a ``with``; there is one capture at a time in a process."""
        with in_other_threads(self._event), contextlib.closing(self), UndoStack() as undo:
            undo.set(*BOOTSTRAP, self._young_threads())
            undo.set(*START, self._raw_threads())
            undo.set(*TASK, self._tasks())
            yield

    def close(self) -> None:
        """Let the mode do nothing from here on; threads that run take it off at their next call."""
        self._mode.report = None
        for _ in range(50):
            if not self._pushed_in & frames_of_threads().keys():
                break
            time.sleep(0.001)

    def _event(self, event: str, called: Any) -> None:
        """In another thread: have the mode on its stack, except while it waits."""
        here = self._here
        if getattr(here, "reporting", False) or getattr(here, "held", False):
            return
        pushed = getattr(here, "pushed", False)
        waits = event == "c_call" and getattr(called, "__name__", "") in _WAITS
        wanted = self._mode.report is not None and not waits
        if wanted == pushed:
            return
        modes = count_modes()
        if wanted and modes == 0:
            push_mode(self._mode)
            here.pushed = True
            self._pushed_in.add(threading.get_ident())
        elif pushed and modes == 1 and mode_at(0) is self._mode:
            pop_mode()
            here.pushed = False
            self._pushed_in.discard(threading.get_ident())

    def _on_operator(self, op: Any, arguments: Any) -> None:
        if getattr(self._here, "reporting", False) or self._is_of_host(arguments):
            return
        self._here.reporting = True
        try:
            self._report(op)
        finally:
            self._here.reporting = False

    def _is_of_host(self, arguments: Any) -> bool:
        """Whether a thread works with the host's tensors alone, where it is known where they lie.

        A thread that is older than what knows it cannot make others.
        """
        if self._on_host is None:
            return False
        places = [self._on_host(each) for each in tensors_in(arguments)]
        if threading.get_ident() in self._young:
            return bool(places) and all(places)
        return False not in places

    def _report(self, op: Any) -> None:
        if isinstance(op, OpOverload):
            traits = traits_of(op)
            if traits.kind is Kind.VIEW:
                return
            name = traits.name
        else:
            name = str(op)
        thread, where = threading.current_thread(), line_at_work()
        finding = CaptureFinding(
            "not-captured",
            f"{name} at {shown(where) or 'an unknown line'} runs in thread "
            f"{thread.name!r} while another thread captures",
            where=where,
            why=_WHY,
            todo=_TODO,
        )
        if self._refusals.first is None:
            self._refusals.first = finding
        if threading.get_ident() in self._young:
            raise CaptureFailedError(finding)

    @contextlib.contextmanager
    def _pushed(self) -> Iterator[None]:
        """The mode in this thread; the flags of ``TorchDispatchMode`` are those of the process."""
        if self._mode.report is None or getattr(self._here, "pushed", False):
            yield
            return
        push_mode(self._mode)
        self._here.pushed = self._here.held = True
        try:
            yield
        finally:
            pop_mode()
            self._here.pushed = self._here.held = False

    @contextlib.contextmanager
    def _in_young(self) -> Iterator[None]:
        ident = threading.get_ident()
        self._young.add(ident)
        try:
            with self._pushed():
                yield
        finally:
            self._young.discard(ident)

    def _young_threads(self) -> Any:
        original = getattr(*BOOTSTRAP)

        def bootstrap(thread: threading.Thread) -> None:
            with self._in_young():
                original(thread)

        bootstrap.watches = self  # type: ignore[attr-defined]
        return bootstrap

    def _raw_threads(self) -> Any:
        original: Callable[..., int] = getattr(*START)

        def start(function: Any, args: Any, kwargs: Any = None) -> int:
            def run(*args: Any, **kwargs: Any) -> None:
                with self._in_young():
                    function(*args, **kwargs)

            return original(run, args, kwargs or {})

        return start

    def _tasks(self) -> Any:
        original: Any = getattr(*TASK)

        def run(item: Any, *args: Any) -> None:
            if threading.get_ident() == self._owner:
                original(item, *args)
                return
            with self._pushed():
                original(item, *args)

        return run
