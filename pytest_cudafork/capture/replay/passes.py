"""The two passes of a pair, warm-up and capture, and what the state held around each.

A pass calls the factory, looks at the state, runs the forward and looks again. Later runs of the
forward on new states are made here, too.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import Capture, GraphBackend, Recording
from pytest_cudafork.capture.replay.capture_graph import capture_graph
from pytest_cudafork.capture.replay.factory import Factory, Pass
from pytest_cudafork.capture.state.aliasing import Allowed
from pytest_cudafork.capture.state.carried import closure_of
from pytest_cudafork.capture.state.compare import short
from pytest_cudafork.capture.state.host_values import carried_values, what_changed
from pytest_cudafork.capture.state.reach import check_devices, storages
from pytest_cudafork.capture.state.rollback import Held, as_before, mutable
from pytest_cudafork.capture.state.snapshot import Change, How, Snapshot, changes
from pytest_cudafork.capture.state.state_tree import TooManyObjectsError
from pytest_cudafork.capture.state.tensors import Randomness, Saved, devices_of, tensors_below
from pytest_cudafork.capture.state.written import has_tensors, refuse_lazy
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.errors import GraphNotJudgedError, GraphUsageError

Named = Mapping[str, Any] | Sequence[Any]
"""Tensors by name, or in a list."""
Persistent = Named | Callable[[Any], Named] | None

# What torch says where a CUDA graph is made: built without CUDA, without a driver, without a GPU.
_NO_GPU = ("dummy base class", "driver version is insufficient", "no CUDA-capable device")


class Pieces(Capture):
    """A forward that captures its own pieces; a replay runs it in that mode, on a new state."""

    def __init__(self, first: Callable[[], Any], again: Callable[[], Any]) -> None:
        """Run the forward for the first time.

        Raises:
            GraphNotJudgedError: its pieces need a GPU, and there is none.

        """
        self._again = again
        why_not = "PIECEWISE: the forward captures its pieces itself"
        try:
            result = first()
        except RuntimeError as error:
            words = str(error).partition("\n")[0]
            if not any(each in words for each in _NO_GPU):
                raise
            raise GraphNotJudgedError(
                f"mode='PIECEWISE': the forward makes a CUDA graph of its own ({words}), and there "
                "is no CUDA here. Pieces are captured by your code, so this needs a GPU: mark the "
                "test @pytest.mark.graph_capture(backends=['cuda']), which skips it here"
            ) from error
        self.recording = Recording(result, None, None, why_not)

    def replay(self) -> None:
        """Run the forward as an engine does in a later step."""
        self.recording = Recording(self._again(), None, None, self.recording.why_not)

    def reset(self) -> None:
        """Nothing is held."""


class Look(NamedTuple):
    """What a pass held at one moment."""

    state: Snapshot
    carried: Snapshot  # what the forward carries beside its state; empty where that is the state


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
    host_at_capture: dict[str, Any]
    changes: list[Change]  # what the warm-up changed in its state
    carried: list[Change]  # what it initialized beside its state
    changed_beside: list[Change]  # all that is another object or value there than before
    places: dict[str, int]  # where the persistent inputs lay after the capture
    returns_tensors: bool  # whether there are tensors below what the captured forward returned

    def __init__(
        self,
        factory: Factory,
        backend: GraphBackend,
        mode: str,
        persistent: Persistent,
        allowed: Allowed,
        log: CheckLog,
        belongs: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.factory, self.backend, self.mode = factory, backend, mode
        self._persistent, self.allowed, self.log = persistent, allowed, log
        self._belongs = belongs
        self.complaint = ""  # what ``belongs`` said before the capture
        self.name = "state"
        self.graph: Capture | None = None
        self.refresh: Callable[..., Any] | None = None  # a vary that wants each new state
        self.kept_in_step: Callable[[], list[dict[str, torch.Tensor]]] = list

    def run(self) -> bool:
        """Warm up and capture; whether there is a graph now.

        Raises:
            GraphUsageError: the factory or the arguments cannot be checked.

        """
        desc = self.factory.desc
        self.warm = self.factory.build(warmup=True)
        if not self.warm.own_state:
            self.name = "forward_fn"
        first = self._look(self.warm)
        self.before = first.state
        self._held = Held(self.before.by_id.values())
        self._beside = mutable(first.carried.by_id.values())
        self._held_beside = Held(self._beside, weakly=True)
        self.warmup = self.backend.record(self.warm.call("NONE", desc))
        refuse_lazy(self.warmup.result, "forward_fn")
        self.backend.synchronize()
        second = self._look(self.warm)
        self.after = second.state
        self.changes = changes(self.before, self.after)
        carried = changes(first.carried, second.carried)
        self.carried = [one for one in carried if one.how is How.INITIALIZED]
        self.changed_beside = [one for one in carried if one.how is not How.WRITTEN]
        self.captured = self.factory.build(warmup=False)
        if self.captured.own_state != self.warm.own_state:
            raise GraphUsageError(
                "create_forward_fn returned a state for one pass and none for the other: return "
                "(forward_fn, state) for both"
            )
        self.at_capture = self.snapshot(self.captured)
        self._ask(desc)
        roots = self._roots(self.captured)
        self.host_at_capture = carried_values(roots, self.captured.forward, "forward_fn.")
        self.graph = self._capture(desc)
        self.after_capture = self.snapshot(self.captured)
        self._check_arguments()
        if self.graph is not None:
            self.returns_tensors = has_tensors(self.graph.recording.result)
        return self.graph is not None

    def _capture(self, desc: Any) -> Capture | None:
        if self.mode == "PIECEWISE":
            graph: Capture | None = Pieces(lambda: self.captured.run("PIECEWISE", desc), self._step)
        else:
            call = self.captured.call("NONE", desc)
            graph = capture_graph(self.backend, call, self.log, warmup=self.warmup)
        if graph is not None:
            self.graph = graph  # so that it is released if the result is refused
            refuse_lazy(graph.recording.result, "forward_fn")
        return graph

    def _step(self) -> Any:
        """Run the pieces on metadata that are built for this step."""
        kept = [self.persistent(self.captured), *self.kept_in_step()]
        with self.fresh(kept) as made:
            if self.refresh is not None:
                self.refresh(made.state)
            return made.run(self.mode, self.factory.desc)

    def changed_values(self, one: Pass) -> str:
        """Say which plain values are others in this pass than they were at the capture."""
        now = carried_values(self._roots(one), one.forward, "forward_fn.")
        return what_changed(self.host_at_capture, now)

    def _roots(self, one: Pass) -> dict[str, Any]:
        return {self.name: one.state} if one.own_state else {}

    def _ask(self, desc: Any) -> None:
        if self._belongs is None:
            return
        try:
            answer = self._belongs(self.captured.state, desc)
        except AssertionError as error:
            self.complaint = f"belongs(state, desc) says: {short(str(error), 200)}"
            return
        if answer is not None and not _is_true(answer):
            self.complaint = f"belongs(state, desc) is {short(answer)} for {short(desc)}"

    def _look(self, one: Pass) -> Look:
        """Look at the state of a pass and at what its forward carries beside it."""
        state = self.snapshot(one)
        if not one.own_state:
            return Look(state, Snapshot(None, "forward_fn"))
        known = [node.value for node in state.by_id.values()]
        skip = [*known, *self.allowed.objects, self.factory.desc]
        carried = types.SimpleNamespace(**closure_of(one.forward))
        try:
            return Look(state, Snapshot(carried, "forward_fn", skip=skip))
        except TooManyObjectsError as error:
            return Look(state, self._not_looked_at(error, "forward_fn"))

    def _not_looked_at(self, error: TooManyObjectsError, name: str) -> Snapshot:
        self.log.note(f"what the forward carries was not looked at: {error}")
        return Snapshot(None, name)

    def snapshot(self, one: Pass) -> Snapshot:
        """Look at the state of a pass.

        Raises:
            GraphUsageError: it is too big to be looked at.

        """
        desc = self.factory.desc
        skip = [*self.allowed.objects, *([desc] if _is_object(desc) else [])]
        try:
            return Snapshot(one.state, self.name, skip=skip)
        except TooManyObjectsError as error:
            if not one.own_state:
                return self._not_looked_at(error, self.name)
            raise GraphUsageError(
                f"{error}. Return as state what the forward uses of it, or leave a part out with "
                "shared=[that_object]"
            ) from None

    def _check_arguments(self) -> None:
        """Refuse tensors on a wrong device, and a path in ``shared=`` that no state has.

        Raises:
            GraphUsageError: there is one.

        """
        inputs = self.persistent(self.captured)
        self.places = storages(inputs)
        check_devices(inputs, self.backend, "the persistent inputs")
        found = devices_of(self.at_capture.tensors(), self.backend.device_of)
        # Lengths on the host beside tensors on the GPU are usual.
        others = [where for where in found if where.type != "cpu"]
        if len(others) > (0 if self.backend.device == "cpu" else 1):
            words = " and ".join(f"{path} on {where}" for where, path in found.items())
            raise GraphUsageError(
                f"the state has {words}. A graph belongs to one device: make them on "
                f"graph_backend.device ({self.backend.device!r} with the {self.backend.name} "
                "backend)"
            )
        seen = (self.before, self.after, self.at_capture, self.after_capture)
        paths = {path for snapshot in seen for path in snapshot.entries}
        for pattern in self.allowed.unmatched(paths):
            some = ", ".join(sorted(path for path in paths if path != self.name)[:6])
            raise GraphUsageError(
                f"shared={pattern!r} is no path in the states; there are {some or self.name}"
            )

    def persistent(self, one: Pass) -> dict[str, torch.Tensor]:
        """Return the persistent inputs of a pass, by path.

        Raises:
            GraphUsageError: they are no mapping from names to tensors, and no list of tensors.

        """
        given = self._persistent(one.state) if callable(self._persistent) else self._persistent
        if given is None:
            return {}
        by_name: Mapping[Any, Any]
        if isinstance(given, Mapping):
            by_name = given
        elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
            by_name = dict(enumerate(given))
        else:
            raise GraphUsageError(
                f"persistent is {short(given)}: give a dict from names to tensors, a list of "
                "tensors, or a function of the state that returns one"
            )
        found: dict[str, torch.Tensor] = {}
        for name, value in by_name.items():
            start = f"persistent[{name!r}]"
            tensors = {} if value is None else tensors_below(value, start)
            if value is not None and not tensors:
                raise GraphUsageError(f"{start} is {short(value)}: it holds no tensor")
            found.update(tensors)
        return found

    @contextlib.contextmanager
    def anew(self, kept: Iterable[Mapping[str, torch.Tensor]]) -> Iterator[Pass]:
        """Build a state as in a new process: what the forward carries is as before the warm-up."""
        with as_before(self._held_beside, self._beside), self.fresh(kept) as made:
            yield made

    @contextlib.contextmanager
    def fresh(self, kept: Iterable[Mapping[str, torch.Tensor]]) -> Iterator[Pass]:
        """Build a state as for another warm-up; ``kept`` memory and random numbers stay.

        A factory that hands out a state it has kept hands it out initialized. Then all objects of
        that state are meanwhile as they were before the warm-up, and afterwards as they are now.
        What the forward carries beside its state is never put back.
        """
        saved = Saved(*kept)
        drawn = Randomness(cuda=self.backend.name == "cuda")
        made = self.factory.build(warmup=True)
        saved.restore()
        drawn.restore()
        present = self.snapshot(made).by_id
        changed = [one for one in self.changes if one.how is How.INITIALIZED]
        if not any(id(one.node.parent) in present for one in changed):
            yield made
            return
        with as_before(self._held, present.values()):
            yield made


def _is_true(answer: Any) -> bool:
    """Whether an answer says yes: all elements of it, where it has several.

    Raises:
        GraphUsageError: it has no truth.

    """
    try:
        every = getattr(answer, "all", None)
        return bool(every() if callable(every) else answer)
    except Exception as error:
        raise GraphUsageError(
            f"belongs returned {short(answer)}, which is neither yes nor no ({error}): return True "
            "or False, or assert"
        ) from error


def _is_object(value: Any) -> bool:
    return not isinstance(value, int | float | str | bytes | tuple | type(None))
