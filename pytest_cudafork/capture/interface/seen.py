"""Captures and replays as they happen: who listens to them, and what is told of each.

The software graph tells of its captures here, and ``capture/seen`` of those of ``torch.cuda``.
Nobody listens, and nothing is told, unless a ``Watch`` is in force. No torch is imported.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from threading import local
from typing import Any

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import line_at_work
from pytest_cudafork.capture.interface.meanwhile import attribute_set, variable_set

__tracebackhide__ = of_refusals

_RENEWED: ContextVar[frozenset[int]] = ContextVar("cudafork_inputs_renewed", default=frozenset())


class SeenCapture:
    """One capture that code under test has made, from its beginning on.

    Attributes:
        number: 1 for the first of the session.
        backend: "software" or "cuda".
        where: ``file:line`` of user code that began it; "" if no such line is known.
        test: the id of the test during which it was made.
        pool: what captures that share memory have in common; None until it has ended.
        renewed: addresses of memory that whoever replays it fills, or looks at, before each replay.
        captured: whether it has ended well.
        replays: how often it was replayed.
        work: how many kernels, copies and the like its graph holds by the driver's count; None: the
            driver did not say, or there is none.
        uses: the memory that it uses, a ``record.uses.GraphUses``, where a listener finds it out.

    """

    def __init__(self, number: int, backend: str, test: str) -> None:
        self.number = number
        self.backend = backend
        self.where = line_at_work()
        self.test = test
        self.pool: Any = None
        self.renewed = _RENEWED.get()
        self.captured = False
        self.replays = 0
        self.work: int | None = None
        self.uses: Any = None
        self._graph: Callable[[], Any] = _nothing
        self._run: Callable[[Any], None] = _nothing

    def made(self, graph: Any, run: Callable[[Any], None], pool: Any) -> None:
        """Take the graph that it has made, which is held weakly."""
        self.captured, self.pool = True, pool
        self._graph, self._run = weakref.ref(graph), run

    def run(self) -> None:
        """Run the graph once, and tell nobody; nothing happens where it is gone."""
        graph = self._graph()
        if graph is not None:
            self._run(graph)

    def wait(self) -> None:
        """Wait until a GPU has done what it was given: it reads host memory when its turn comes."""
        if self.backend == "cuda":
            import torch

            torch.cuda.synchronize()

    def let_go(self) -> None:
        """Forget the graph, which was reset."""
        self.captured, self._graph = False, _nothing


def _nothing(*given: Any) -> None:
    """Stand for what is not there."""


class Listener:
    """What is told of captures and replays, in the thread that makes them. All does nothing here.

    A method that raises stops the test: what goes on is the listener's to handle.
    """

    def on_capture_begin(self, capture: SeenCapture) -> None:
        """Hear that a capture has just begun: operators are recorded from now on."""

    def on_capture_closing(self, capture: SeenCapture) -> None:
        """Hear that it is about to end, well or not; modes that were put on are taken off here."""

    def on_capture_end(self, capture: SeenCapture) -> None:
        """Hear that it has ended; ``capture.captured`` says whether well."""

    def on_replay_begin(self, capture: SeenCapture) -> None:
        """Hear that a graph is about to be replayed."""

    def on_replay_end(self, capture: SeenCapture, failed: BaseException | None) -> None:
        """Hear that it was replayed; with the error, if it raised one."""

    def on_capture_elsewhere(self) -> None:
        """Hear that another thread, over which there is no watch, begins to capture."""

    def on_replay_elsewhere(self, capture: SeenCapture) -> None:
        """Hear, in another thread or where nobody looks on, that a graph is about to be run."""

    def on_unseen_replay(self) -> None:
        """Hear of a replay that is not looked at while others are.

        Another thread makes it, or nobody looked at the graph when it was captured.
        """

    def takes_replay(self, capture: SeenCapture) -> bool:
        """Whether the listener stands in for this replay: True, and the graph is not run."""
        return False

    def on_reset(self, capture: SeenCapture) -> None:
        """Hear that the graph was let go of."""

    def on_host_copy(self, tensor: Any) -> None:
        """Hear that a tensor of a stand-in for a GPU is about to be copied to the host."""

    def on_own_check_begin(self) -> None:
        """Hear that a check of this plugin begins; nothing else is told until it has run."""

    def on_own_check(self) -> None:
        """Hear that a check of this plugin has run, which captures and changes memory by itself."""


class Watch:
    """Tells listeners of the captures of one process, across its tests.

    ``test`` is the id of the test that runs; whoever puts the watch in force keeps it up to date.
    """

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = tuple(listeners)
        self.test = ""
        self._count = 0
        self._open: weakref.WeakKeyDictionary[Any, SeenCapture] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[Any, SeenCapture] = weakref.WeakKeyDictionary()
        self._suspended = 0
        self._threads = 0
        """Over how many threads it is in force; it may be twice over one."""

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Hear of what this thread captures and replays, for the length of a ``with``."""
        self._threads += 1
        try:
            with attribute_set(_HERE, "watch", self):
                yield
        finally:
            self._threads -= 1

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Hear of nothing for the length of a ``with``; listeners are told that it was so."""
        self._suspended += 1
        if self._suspended == 1:
            for each in self.listeners:
                each.on_own_check_begin()
        try:
            yield
        finally:
            self._suspended -= 1
            if not self._suspended:
                for each in self.listeners:
                    each.on_own_check()

    @property
    def is_in_force(self) -> bool:
        """Whether it is over some thread now."""
        return bool(self._threads)

    @property
    def hears(self) -> bool:
        """Whether something that happens now is told to the listeners."""
        return not self._suspended

    def capture_of(self, graph: Any) -> SeenCapture | None:
        """Return the capture that a graph was made by; None: it was not seen."""
        return self._known.get(graph)

    def begun(self, maker: Any, backend: str) -> None:
        """Tell that *maker*, an open capture or a graph of torch, has begun to capture."""
        if not self.hears:
            return
        self._count += 1
        capture = self._open[maker] = SeenCapture(self._count, backend, self.test)
        for each in self.listeners:
            each.on_capture_begin(capture)

    def closing(self, maker: Any, work: int | None = None) -> None:
        """Tell that a capture is about to end; nothing if it was not seen to begin."""
        capture = self._open.get(maker)
        if capture is not None:
            capture.work = work
            for each in reversed(self.listeners):
                each.on_capture_closing(capture)

    def failed(self, maker: Any) -> None:
        """Tell that a capture has ended and there is no graph."""
        capture = self._open.pop(maker, None)
        if capture is not None:
            for each in self.listeners:
                each.on_capture_end(capture)

    def captured(self, maker: Any, graph: Any, run: Callable[[Any], None], pool: Any) -> None:
        """Tell that a capture has ended well: *run*, given the *graph*, runs it once."""
        capture = self._open.pop(maker, None)
        if capture is None:
            return
        capture.made(graph, run, pool)
        self._known[graph] = capture
        for each in self.listeners:
            each.on_capture_end(capture)

    def replay(self, graph: Any, run: Callable[[], None]) -> None:
        """Run a graph once by *run*, and tell of it."""
        capture = self._known.get(graph) if self.hears else None
        if capture is None:
            if self.hears:
                self._tell_of_unseen_replay()
            run()
            return
        for each in self.listeners:
            each.on_replay_begin(capture)
        capture.replays += 1
        error: BaseException | None = None
        try:
            taken = [each.takes_replay(capture) for each in self.listeners]
            if not any(taken):
                run()
        except BaseException as raised:
            error = raised
            raise
        finally:
            for each in reversed(self.listeners):
                each.on_replay_end(capture, error)

    def captured_elsewhere(self) -> None:
        """Tell that a thread over which there is no watch begins to capture."""
        for each in self.listeners:
            each.on_capture_elsewhere()

    def replayed_elsewhere(self, graph: Any) -> None:
        """Tell that a graph is about to be run by a thread over which there is no watch."""
        capture = self._known.get(graph)
        if capture is None:
            return
        for each in self.listeners:
            each.on_replay_elsewhere(capture)
        if self.is_in_force:
            self._tell_of_unseen_replay()

    def _tell_of_unseen_replay(self) -> None:
        for each in self.listeners:
            each.on_unseen_replay()

    def reset(self, graph: Any) -> None:
        """Tell that a graph was let go of."""
        capture = self._known.pop(graph, None)
        if capture is not None:
            capture.let_go()
            for each in self.listeners:
                each.on_reset(capture)

    def host_copies(self, tensor: Any) -> None:
        """Tell that a tensor of a stand-in for a GPU is about to be copied to the host."""
        if self.hears:
            for each in self.listeners:
                each.on_host_copy(tensor)


class _Here(local):
    """What is in force over each thread.

    No variable of contexts: a thread may be given a copy of another one's (``asyncio.to_thread``),
    and the operators of that thread are not seen.
    """

    watch: Watch | None = None


_HERE = _Here()


def inputs_renewed_at(addresses: Iterable[int]) -> contextlib.AbstractContextManager[None]:
    """Say of captures that begin meanwhile where inputs lie that are renewed before each replay."""
    return variable_set(_RENEWED, frozenset(addresses))


def replay_seen(graph: Any, run: Callable[[], None], seen_by: Watch | None) -> None:
    """Run a graph by *run*, and tell the watch over this thread, else the one that saw it made."""
    watch = _HERE.watch
    if watch is not None:
        watch.replay(graph, run)
        return
    if seen_by is not None:
        seen_by.replayed_elsewhere(graph)
    run()


def reset_seen(graph: Any) -> None:
    """Tell the watch over this thread that a graph is let go of."""
    watch = _HERE.watch
    if watch is not None:
        watch.reset(graph)


def watch_in_force() -> Watch | None:
    """Return the watch over this thread; None: nobody listens."""
    return _HERE.watch


def suspended() -> contextlib.AbstractContextManager[None]:
    """Let nobody hear of what a check of this plugin captures, for the length of a ``with``."""
    watch = _HERE.watch
    return contextlib.nullcontext() if watch is None else watch.suspended()
