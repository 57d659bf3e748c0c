"""Owns the graphs of a draft head's two kinds of steps: prefill and decode.

*Prefill* runs the head over all tokens of the model's step. Its attention is that of the model's
step: same queries, lengths and blocks. So it takes the model's attention states, and has to choose
of each pair the one that belongs to the pass (vLLM #44253): the state that was captured holds plans
that nothing has computed before the model's graph is replayed, and a warm-up that runs on them
reads memory that nobody filled. At a replay they are right: the model's graph of the same
descriptor has just been replayed.

*Decode* runs one token of each request, with lengths and metadata of its own.

It knows no head: whoever runs one gives it a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.manager import GraphSet
from sample_engine.graphs.state import (
    AttentionState,
    AttentionStatePair,
    CreateForwardFn,
    ForwardFn,
)

__all__ = ["DecodeEagleCudaGraphManager", "PrefillEagleCudaGraphManager", "PrefillForward"]


class PrefillForward(Protocol):
    """One prefill of the head on the persistent inputs: device work on its arguments only."""

    def __call__(
        self,
        desc: BatchExecutionDescriptor,
        attn_metadata: Mapping[str, Any],
        slot_mappings: Mapping[str, torch.Tensor],
        cg_mode: CUDAGraphMode,
        /,
    ) -> None:
        """Run the head over ``desc.num_tokens`` tokens and draft the first token."""


class PrefillEagleCudaGraphManager(GraphSet):
    """FULL graphs of the head's prefill, for descriptors that the model has FULL graphs of."""

    def capture(
        self,
        forward_fn: PrefillForward,
        attn_states: Mapping[BatchExecutionDescriptor, AttentionStatePair],
        prepare: Callable[[BatchExecutionDescriptor], object],
        progress_bar_desc: str = "Capturing prefill CUDA graphs of the draft head",
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture with the states of the model's graphs.

        ``prepare`` fills the persistent inputs for a descriptor, as for the model's capture. The
        states are views of them, and a later descriptor has overwritten what they held: distinct
        objects alone are not enough (vLLM #48261).
        """
        missing = [str(desc) for desc in self.descs if desc not in attn_states]
        if missing:
            raise ValueError(
                f"The model has no attention state of {'; '.join(missing)}: the draft head's "
                "prefill can only be captured for what the model was captured for."
            )

        def create_forward_fn(
            desc: BatchExecutionDescriptor, warmup: bool
        ) -> tuple[ForwardFn, AttentionState]:
            prepare(desc)
            pair = attn_states[desc]
            state = pair.warmup if warmup else pair.captured

            def forward(cg_mode: CUDAGraphMode) -> None:
                forward_fn(desc, state.attn_metadata, state.slot_mappings, cg_mode)

            return forward, state

        return self._capture_all(create_forward_fn, progress_bar_desc)


class DecodeEagleCudaGraphManager(GraphSet):
    """FULL graphs of the head's decode steps: one token of each request."""

    def capture(
        self,
        create_forward_fn: CreateForwardFn,
        progress_bar_desc: str = "Capturing decode CUDA graphs of the draft head",
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture with states of its own, made anew for each pass."""
        return self._capture_all(create_forward_fn, progress_bar_desc)
