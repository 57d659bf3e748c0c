"""Owns a function as it is compared: captured, or replayed by its own graph, and run eagerly.

It does not know what is done between the runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pytest_cudafork.capture.attempt import capture_graph
from pytest_cudafork.capture.backend import GraphBackend
from pytest_cudafork.capture.reach import (
    moved,
    reachable_generators,
    reachable_tensors,
    storages,
)
from pytest_cudafork.capture.stimulus import Stimulus
from pytest_cudafork.capture.story import Checks
from pytest_cudafork.capture.subject import Subject
from pytest_cudafork.capture.tensors import Saved, tensors_in


class Program(Subject):
    """A function and its static inputs."""

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[Any] | Mapping[str, Any],
        eager: Callable[..., Any] | None,
        replay: Callable[[], Any] | None,
        checks: Checks,
    ) -> None:
        self._fn, self._inputs, self._own_replay = fn, inputs, replay
        self._eager = fn if eager is None else eager
        self.is_own_reference = self._eager is fn
        self._checks = checks
        self._last: Any = None
        self._doubtful: dict[str, tuple[int, int, str]] = {}
        self._where = storages(self.inputs())
        self._reached = storages(self.reachable())

    def call(self, fn: Callable[..., Any]) -> Any:
        """Call a function with the inputs, or without any if it takes none."""
        if fn is not self._fn and not _takes(fn, self._inputs):
            return fn()
        if isinstance(self._inputs, Mapping):
            return fn(**self._inputs)
        return fn(*self._inputs)

    def capture(self, backend: GraphBackend, pool: Any) -> bool:
        """Warm up and capture; return whether there is a graph now."""
        before = Saved(self.inputs()), Saved(self.reachable())
        warmup = backend.record(lambda: self.call(self._fn))
        for saved in before:
            saved.restore()
        self._where, self._reached = storages(self.inputs()), storages(self.reachable())
        self.graph = capture_graph(
            backend, lambda: self.call(self._fn), self._checks, pool=pool, warmup=warmup
        )
        if self.graph is None:
            return False
        self.after_change(Stimulus("the capture", lambda: None))
        self._where, self._reached = storages(self.inputs()), storages(self.reachable())
        return True

    def eager(self) -> Any:
        """Run the eager code."""
        return self.call(self._eager)

    def replay(self) -> Any:
        """Replay the graph."""
        if self._own_replay is not None:
            self._last = self._own_replay()
            return self._last
        assert self.graph is not None, "there is a graph if there are rounds"
        self.graph.replay()
        return self.graph.recording.result

    def outputs(self) -> Any:
        """The static outputs; those of a graph captured elsewhere are known after a replay."""
        return self.graph.recording.result if self.graph is not None else self._last

    def inputs(self) -> dict[str, torch.Tensor]:
        """The static inputs, as the list or mapping holds them now."""
        return tensors_in(self._inputs, "inputs")

    def reachable(self) -> dict[str, torch.Tensor]:
        """The tensors that the function carries."""
        return reachable_tensors(self._fn, self.inputs().values(), self._checks)

    def generators(self) -> list[torch.Generator]:
        """The generators that the function carries."""
        return reachable_generators(self._fn)

    def moved(self) -> set[str]:
        """The reachable tensors that lie elsewhere than in the capture."""
        return {path for path, _, _ in moved(self._reached, self.reachable(), None)}

    def after_change(self, stimulus: Stimulus) -> None:
        """Note inputs that lie elsewhere now, and remember reachable memory that does."""
        self._checks.did("moved-input")
        for path, old, new in moved(self._where, self.inputs(), None):
            self._tell(path, old, new, stimulus.name)
        uses = self.graph.recording.uses if self.graph is not None else None
        for path, old, new in moved(self._reached, self.reachable(), uses):
            self._doubtful.setdefault(path, (old, new, stimulus.name))

    def tell_moved(self) -> None:
        """Note reachable memory that has moved, if a replay was wrong: it may be unused by now."""
        if self._checks.findings:
            for path, (old, new, when) in self._doubtful.items():
                self._tell(path, old, new, when)

    def _tell(self, path: str, old: int, new: int, when: str) -> None:
        self._checks.add(
            "moved-input",
            f"{path} lay at {old:#x} and lies at {new:#x} after {when}; the graph still reads the "
            "old memory",
            path=path,
            why="a graph holds addresses: a name that is bound to a new tensor means nothing to "
            "it, and the old memory may belong to somebody else by then",
            todo="write into the tensor (copy_, fill_) instead of making a new one, and keep it "
            "alive as long as the graph",
        )


def _takes(fn: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any]) -> bool:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return True
    try:
        if isinstance(inputs, Mapping):
            signature.bind(**inputs)
        else:
            signature.bind(*inputs)
    except TypeError:
        return False
    return True
