"""Captures on the software graph that a watch looks at, for tests of what it knows and says."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_cudafork.capture.in_tests.listeners import Watching
from pytest_cudafork.capture.interface.seen import SeenCapture
from pytest_cudafork.capture.stand_ins.capturing import graphs

__all__ = ["Captured", "LateDevice", "Looking", "looking"]


class Captured:
    """A graph, what its function returned, and what was seen of its capture."""

    def __init__(self, graph: Any, result: Any, seen: SeenCapture) -> None:
        self.graph, self.result, self.seen = graph, result, seen

    def replay(self) -> Any:
        """Run it once; return its result."""
        self.graph.replay()
        return self.result


class Looking:
    """A watch in force, with short ways to capture and to ask."""

    def __init__(self, watching: Watching) -> None:
        self.watching = watching
        self.history = watching.recorder.history
        self._seen: list[SeenCapture] = []

    def capture(self, work: Callable[[], Any], pool: Any = None) -> Captured:
        """Capture what ``work`` does."""
        graph = graphs.CUDAGraph()
        with graphs.graph(graph, pool=pool):
            result = work()
        seen = self.watching.watch.capture_of(graph._capture)
        assert seen is not None, "the capture was not seen"
        return Captured(graph, result, seen)

    def kinds(self, level: str = "errors") -> list[str]:
        """Return the kinds of what was found since the last call."""
        return [each["kind"] for each in self.watching.take().get(level, ())]


class LateDevice:
    """Stands for a GPU that runs a graph, and what else was given to it, when it is waited for."""

    def __init__(self, seen: SeenCapture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[Callable[[], object]] = []
        monkeypatch.setattr(seen, "run", functools.partial(self.given.append, seen.run))
        monkeypatch.setattr(seen, "wait", self._work)

    def _work(self) -> None:
        while self.given:
            self.given.pop(0)()


@contextlib.contextmanager
def looking(how: str = "check") -> Iterator[Looking]:
    """Look at the captures of this thread, for the length of a ``with``."""
    watching = Watching(how)
    with watching.in_force("test_of_it"):
        yield Looking(watching)
