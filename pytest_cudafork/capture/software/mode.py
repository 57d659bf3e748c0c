"""The dispatch modes below a recording: what becomes of each operator that the code calls.

``RecordingMode`` is what recording an eager run (``EagerMode``, here) and capturing
(``capture_mode``) have in common.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.backend import (
    CaptureFinding,
    GraphNode,
    Recording,
    Region,
    Work,
)
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.host_work import SeesHostWork
from pytest_cudafork.capture.interface.lines import line_at_work, shown
from pytest_cudafork.capture.operators.higher_order import seen_inside
from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import Traits, tensors_in, traits_of
from pytest_cudafork.capture.software.memory import Memories, Memory, region_of
from pytest_cudafork.capture.software.pool import Pool
from pytest_cudafork.capture.software.shapes import Shapes
from pytest_cudafork.compat.torch_graphs.modes import DispatchMode, handles_operators
from pytest_cudafork.compat.torch_graphs.operators import CPU_KEYS, OpOverload, below_autograd
from pytest_cudafork.compat.torch_graphs.tensors import has_no_storage

__tracebackhide__ = of_refusals


class Recorder:
    """Nodes and memory of recorded work."""

    def __init__(self, pool: Pool | None = None) -> None:
        self.nodes: list[GraphNode] = []
        self.memories = Memories(pool)
        self.findings: list[CaptureFinding] = []
        self._regions: list[tuple[list[Region], list[Region]]] = []  # by node: read, written

    def node(self, kind: str, name: str) -> int:
        """Note a piece of work; its number."""
        self.nodes.append(GraphNode(kind, name, line_at_work()))
        self._regions.append(([], []))
        return len(self.nodes) - 1

    def use(
        self, memory: Memory, node: int, *, reads: bool, writes: bool, tensor: Tensor | None = None
    ) -> None:
        """Note that a node uses memory, all of it or what a tensor covers."""
        if not memory.host:
            region_of(memory, tensor).note(self._regions[node], reads=reads, writes=writes)
        if memory.node < 0:
            memory.node = node
        if reads:
            memory.reads = True
            if not memory.filled:
                self._unfilled(memory, node)
        if writes:
            memory.writes = True
            memory.filled = True

    def recording(self, result: Any) -> Recording:
        """Return what was recorded."""
        work = (
            Work(node.name, node.where, tuple(reads), tuple(writes), node.kind != "triton")
            for node, (reads, writes) in zip(self.nodes, self._regions, strict=True)
        )
        return Recording(result, tuple(self.nodes), self.memories.uses(), work=tuple(work))

    def _unfilled(self, memory: Memory, node: int) -> None:
        memory.filled = True  # said once
        name, where = self.nodes[node].name, self.nodes[node].where
        self.findings.append(
            CaptureFinding(
                "uninitialized-read",
                f"{name} reads {memory.text}, which was allocated at {shown(memory.where)} and "
                "which nothing in the graph has written",
                where=where,
                why="a replay reads what happens to lie in the memory pool",
                todo="fill it within the graph (zeros, copy_), or check that the node that fills "
                "it was recorded: a warm-up may have done it",
            )
        )


def _dense(tree: Any) -> list[Tensor]:
    """The tensors that have a shape and a storage."""
    tensors = [e for e in tensors_in(tree) if e.layout == torch.strided and not e.is_nested]
    return [e for e in tensors if not has_no_storage(e)]


class RecordingMode(DispatchMode, SeesHostWork):
    """What capturing and recording an eager run have in common."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.paused = False

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle one operator."""
        kwargs = kwargs or {}
        if self.paused:
            return op(*args, **kwargs)
        if types and any(map(handles_operators, types)):
            return NotImplemented  # a tensor subclass says first what it is made of
        if not isinstance(op, OpOverload):
            return self.higher_order(op, args, kwargs)
        traits = traits_of(op)
        if traits.in_python:
            return self._open(op, args, kwargs)
        if traits.composite:
            # Only under torch.inference_mode() do such operators come as a whole.
            with self:
                return op.decompose(*args, **kwargs)
        return self.handle(op, traits, args, kwargs)

    def _open(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the Python kernel of a custom operator; its operators are recorded one by one.

        That is what a capture of a CUDA graph does: the Python code runs now and never again.
        """
        with below_autograd(), self:
            return op.redispatch(CPU_KEYS, *args, **kwargs)

    def higher_order(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Handle ``torch.cond`` and its kind: their code runs, its operators are recorded."""
        run = seen_inside(op, self)
        return self.opaque(op, args, kwargs) if run is None else run(*args, **kwargs)

    def opaque(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Handle a higher-order operator without Python code for plain tensors."""
        raise NotImplementedError

    def handle(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        """Handle an operator of torch, or one with a native kernel."""
        raise NotImplementedError


class EagerMode(RecordingMode):
    """Runs everything, and notes what it was; a capture learns from it which results there are."""

    def __init__(self, recorder: Recorder, shapes: Shapes | None = None) -> None:
        super().__init__(recorder)
        self._shapes = shapes

    def opaque(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run it; what it does inside is not noted."""
        return op(*args, **kwargs)

    def handle(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run it and note it."""
        result = op(*args, **kwargs)
        if self.host_works:
            return result
        kind = traits.kind
        made_there = kind is Kind.SCALAR and kwargs.get("device") is not None  # filled there
        if kind in (Kind.VIEW, Kind.SYNC, Kind.SCALAR, Kind.RESIZE) and not made_there:
            return result
        memories = self.recorder.memories
        if kind is Kind.LIFT:
            memories.of(result).host = True
            return result
        if kind is Kind.EMPTY:
            for each in _dense(result):
                made = memories.own(each)
                made.filled, made.where = False, line_at_work()
            return result
        found = _dense((args, kwargs))
        if found and all((m := memories.get(each)) is not None and m.host for each in found):
            for each in _dense(result):
                memories.of(each).host = True
            return result
        if self._shapes is not None and traits.on_values is None:
            self._shapes.learn(op, traits, args, kwargs, result)
        node = self.recorder.node("op", traits.name)
        note_uses(self.recorder, traits, args, kwargs, found, node)
        inside = {id(each) for each in found}
        for each in _dense(result):
            if id(each) not in inside and memories.get(each) is None:
                self.recorder.use(memories.own(each), node, reads=False, writes=True, tensor=each)
        return result


def note_uses(
    recorder: Recorder,
    traits: Traits,
    args: Any,
    kwargs: dict[str, Any],
    found: list[Tensor],
    node: int,
) -> None:
    """Note what an operator reads and writes of its arguments."""
    memories, dense = recorder.memories, {id(each) for each in found}
    given = list(traits.tensors(args, kwargs))
    if traits.written or not traits.shape_only:
        for each, written in given:
            if written is None and id(each) in dense:
                read = each.numel() > 0
                recorder.use(memories.of(each), node, reads=read, writes=False, tensor=each)
    for each, written in given:
        if written is not None and id(each) in dense:
            # A partial write of fresh memory is no read of it: only plain arguments count as such.
            memory = memories.of(each)
            memory.filled = True
            recorder.use(memory, node, reads=written.reads, writes=True, tensor=each)
