"""Owns the two passes of a pair: warm-up and capture, and what the state held around each.

It does not know what is wrong with them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pytest_cudafork.capture.aliasing import Allowed
from pytest_cudafork.capture.attempt import capture_graph
from pytest_cudafork.capture.backend import Capture, GraphBackend, Recording
from pytest_cudafork.capture.compare import short
from pytest_cudafork.capture.culprit import redo, undo
from pytest_cudafork.capture.factory import Factory, Pass
from pytest_cudafork.capture.snapshot import Change, How, Snapshot, changes
from pytest_cudafork.capture.state_tree import TooManyObjectsError, closure_of
from pytest_cudafork.capture.story import Checks
from pytest_cudafork.capture.tensors import Randomness, Saved, tensors_in
from pytest_cudafork.errors import GraphUsageError

Persistent = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None


class Pieces(Capture):
    """A forward that captures its own pieces; a replay runs it in that mode."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self.recording = Recording(
            run(), None, None, "PIECEWISE: the forward captures its pieces itself"
        )

    def replay(self) -> None:
        """Run the forward."""
        self.recording = Recording(self._run(), None, None, self.recording.why_not)

    def reset(self) -> None:
        """Nothing is held."""


class Passes:
    """Warm-up and capture of one descriptor."""

    warm: Pass
    captured: Pass
    before: Snapshot  # the warm-up's state, before its forward ran
    after: Snapshot
    at_capture: Snapshot  # the captured state, before its forward ran
    after_capture: Snapshot
    warmup: Recording
    graph: Capture | None

    def __init__(
        self,
        factory: Factory,
        backend: GraphBackend,
        mode: str,
        persistent: Persistent,
        allowed: Allowed,
        checks: Checks,
        belongs: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.factory, self.backend, self.mode = factory, backend, mode
        self._persistent, self.allowed, self.checks = persistent, allowed, checks
        self._belongs = belongs
        self.complaint = ""  # what ``belongs`` said before the capture
        self.name = "state"
        self.carried: list[Change] = []  # what the warm-up initialized beside its state

    def run(self) -> bool:
        """Warm up and capture; whether there is a graph now."""
        self.warm = self.factory.build(warmup=True)
        if not self.warm.own_state:
            self.name = "forward_fn"
        self.before = self.snapshot(self.warm)
        around = self._around(self.warm)
        desc = self.factory.desc
        self.warmup = self.backend.record(lambda: self.warm.run("NONE", desc))
        self.backend.synchronize()
        self.after = self.snapshot(self.warm)
        self._kept = self._around(self.warm)
        self.carried = [one for one in changes(around, self._kept) if one.how is How.INITIALIZED]
        self.captured = self.factory.build(warmup=False)
        if self.captured.own_state != self.warm.own_state:
            raise GraphUsageError(
                "create_forward_fn returned a state for one pass and none for the other: return "
                "(forward_fn, state) for both"
            )
        self.at_capture = self.snapshot(self.captured)
        self._ask(desc)
        self.graph = self._capture(desc)
        self.after_capture = self.snapshot(self.captured)
        return self.graph is not None

    def _capture(self, desc: Any) -> Capture | None:
        if self.mode == "PIECEWISE":
            return Pieces(lambda: self.captured.run("PIECEWISE", desc))
        return capture_graph(
            self.backend,
            lambda: self.captured.run("NONE", desc),
            self.checks,
            warmup=self.warmup,
        )

    def _ask(self, desc: Any) -> None:
        if self._belongs is None:
            return
        try:
            answer = self._belongs(self.captured.state, desc)
        except AssertionError as error:
            self.complaint = f"belongs(state, desc) says: {short(str(error), 200)}"
            return
        if answer is False:
            self.complaint = f"belongs(state, desc) is False for {short(desc)}"

    def _around(self, one: Pass) -> Snapshot:
        """Look at what a forward carries beside its state."""
        if not one.own_state:
            return Snapshot(None, "forward_fn")
        known = [node.value for node in self.snapshot(one).by_id.values()]
        skip = [*known, *self.allowed.objects, self.factory.desc]
        carried = types.SimpleNamespace(**closure_of(one.forward))
        try:
            return Snapshot(carried, "forward_fn", skip=skip)
        except TooManyObjectsError as error:
            self.checks.note(f"what the forward carries was not looked at: {error}")
            return Snapshot(None, "forward_fn")

    def snapshot(self, one: Pass) -> Snapshot:
        """Look at the state of a pass.

        Raises:
            GraphUsageError: it is too big to be looked at.

        """
        skip = [
            *self.allowed.objects,
            *([self.factory.desc] if _is_object(self.factory.desc) else []),
        ]
        try:
            return Snapshot(one.state, self.name, skip=skip)
        except TooManyObjectsError as error:
            if not one.own_state:
                self.checks.note(f"what the forward carries was not looked at: {error}")
                return Snapshot(None, self.name)
            raise GraphUsageError(
                f"{error}. Return as state what the forward uses of it, or leave a part out with "
                "shared=[that_object]"
            ) from None

    def persistent(self, one: Pass) -> dict[str, torch.Tensor]:
        """Return the persistent inputs of a pass, by path.

        Raises:
            GraphUsageError: they are no mapping from names to tensors.

        """
        given = self._persistent(one.state) if callable(self._persistent) else self._persistent
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise GraphUsageError(
                f"persistent is {short(given)}: give a dict from names to tensors, or a function "
                "of the state that returns one"
            )
        found: dict[str, torch.Tensor] = {}
        for name, value in given.items():
            start = f"persistent[{name!r}]"
            tensors = {} if value is None else tensors_in(value, start)
            if value is not None and not tensors:
                raise GraphUsageError(f"{start} is {short(value)}: it holds no tensor")
            found.update(tensors)
        return found

    def initialized(self) -> list[Change]:
        """Return what the warm-up changed in its state."""
        return changes(self.before, self.after)

    def fresh(
        self, kept: Iterable[Mapping[str, torch.Tensor]], *, forget_carried: bool = True
    ) -> Pass:
        """Build a state as for another warm-up; ``kept`` memory and random numbers stay.

        A factory that hands out a state it has kept hands it out initialized, and a forward may
        carry something that is. There what the warm-up has initialized is undone.
        """
        saved = [Saved(tensors) for tensors in kept]
        drawn = Randomness(cuda=self.backend.name == "cuda")
        made = self.factory.build(warmup=True)
        for one in saved:
            one.restore()
        drawn.restore()
        present = self.snapshot(made)
        for change in reversed(self.initialized()):
            if id(change.node.parent) in present.by_id:
                undo(change)
        for change in reversed(self.carried if forget_carried else []):
            undo(change)
        return made

    def run_fresh(self, made: Pass) -> Any:
        """Run a pass on what ``fresh`` has built.

        Where the forward cannot be run on what it carries made as before the warm-up, it is run on
        that as it is.
        """
        try:
            return made.run("NONE", self.factory.desc)
        except Exception as error:
            if not self.carried:
                raise
            for change in self.carried:
                redo(change)
            self.checks.note(
                "eager runs use what the warm-up has left in "
                f"{', '.join(change.path for change in self.carried[:4])}: without it they raise "
                f"{type(error).__name__}"
            )
            self.carried = []
            return made.run("NONE", self.factory.desc)


def _is_object(value: Any) -> bool:
    return not isinstance(value, int | float | str | bytes | tuple | type(None))
