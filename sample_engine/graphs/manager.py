"""Captures the graphs of one kind of forward pass, chooses one for a batch and replays it.

What is captured is up to a factory that prepares each pass (``state.CreateForwardFn``); how it is
captured, to ``execution.GraphExecution``. The passes of a draft head have managers of their own,
which are subclasses (``speculate/eagle/cudagraph.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from sample_engine.config import CUDAGraphMode
from sample_engine.errors import GraphCaptureError
from sample_engine.frontend.progress import step_bar
from sample_engine.graphs.descriptor import BatchExecutionDescriptor, capture_order, dispatch
from sample_engine.graphs.execution import CapturedGraph, GraphExecution
from sample_engine.graphs.state import AttentionStatePair, CreateForwardFn

__all__ = ["CudaGraphManager"]


class CudaGraphManager:
    """The graphs of one kind of forward pass, by their descriptors."""

    def __init__(
        self,
        descs: Iterable[BatchExecutionDescriptor],
        execution: GraphExecution,
        *,
        pool: Any = None,
        show_progress: bool | None = None,
    ) -> None:
        self.descs = capture_order(descs)
        self.execution = execution
        # One for all: graphs of one engine never run at a time.
        self.pool = execution.new_pool() if pool is None else pool
        self.show_progress = show_progress
        self._graphs: dict[BatchExecutionDescriptor, CapturedGraph] = {}
        # Graphs read memory that the metadata owns (plans, room for partial results).
        self._attn_states: dict[BatchExecutionDescriptor, AttentionStatePair] = {}
        self._chosen: dict[tuple[int, int, int | None], BatchExecutionDescriptor] = {}

    @property
    def query_lens(self) -> tuple[int, ...]:
        """How many queries the requests of the FULL graphs have."""
        lens = {desc.uniform_query_len for desc in self.descs}
        return tuple(sorted(each for each in lens if each is not None))

    def capture(
        self,
        create_forward_fn: CreateForwardFn,
        progress_bar_desc: str = "Capturing CUDA graphs",
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture all descriptors: PIECEWISE then FULL, the largest first, on one shared pool.

        Returns the states of warm-up and capture for each. Raises :class:`GraphCaptureError`; then
        no graph is kept.
        """
        self.reset()
        states: dict[BatchExecutionDescriptor, AttentionStatePair] = {}
        bar = step_bar(len(self.descs), self.show_progress, progress_bar_desc, "graph")
        try:
            with torch.inference_mode(), self.execution.session(), bar as tell:
                for desc in self.descs:
                    states[desc] = self._capture_one(desc, create_forward_fn)
                    tell(len(states))
        except BaseException:
            self.reset()
            raise
        self._attn_states = states
        self._chosen.clear()
        return dict(states)

    def dispatch(
        self, num_reqs: int, num_tokens: int, uniform_query_len: int | None
    ) -> BatchExecutionDescriptor:
        """How to run a batch (see ``descriptor.dispatch``). Before :meth:`capture`: eagerly."""
        key = num_reqs, num_tokens, uniform_query_len
        desc = self._chosen.get(key)
        if desc is None:
            desc = self._chosen[key] = dispatch(self._attn_states, *key)
        return desc

    def __contains__(self, desc: object) -> bool:
        """Whether there is a FULL graph of this descriptor, so that :meth:`run` can be called."""
        return desc in self._graphs

    def run(self, desc: BatchExecutionDescriptor) -> None:
        """Replay a FULL graph on what the persistent inputs hold now."""
        graph = self._graphs.get(desc)
        if graph is None:
            raise KeyError(
                f"There is no FULL graph of {desc}: it was not captured, or it is PIECEWISE and "
                "run piece by piece. dispatch() says what there is."
            )
        graph.replay()

    def reset(self) -> None:
        """Let go of all graphs."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._attn_states.clear()
        self._chosen.clear()

    def _capture_one(
        self, desc: BatchExecutionDescriptor, create_forward_fn: CreateForwardFn
    ) -> AttentionStatePair:
        """Warm up with a state of its own, then capture with a fresh one."""
        try:
            forward_fn, warmup = create_forward_fn(desc, True)
            forward_fn(CUDAGraphMode.NONE)
            if desc.cg_mode is CUDAGraphMode.PIECEWISE:
                forward_fn(CUDAGraphMode.PIECEWISE)
                return AttentionStatePair(warmup, warmup)
            forward_fn, captured = create_forward_fn(desc, False)
            self._graphs[desc] = self.execution.capture(
                lambda: forward_fn(CUDAGraphMode.NONE), self.pool
            )
        except Exception as error:
            raise GraphCaptureError(
                f"Capturing a graph failed ({desc}): {type(error).__name__}: {error}. "
                "cudagraph_mode='NONE' runs without graphs."
            ) from error
        return AttentionStatePair(warmup, captured)
