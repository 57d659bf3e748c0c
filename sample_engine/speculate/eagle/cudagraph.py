"""CUDA graphs of an EAGLE head: a manager for each of its two kinds of pass, and what drives them.

*Prefill* runs the head over all tokens of the model's step. Its attention is that of the model's
step: same queries, lengths and blocks. So it takes the model's attention states, and has to choose
of each pair the one that belongs to the pass (vLLM #44253): the state that was captured holds plans
that nothing has computed before the model's graph is replayed, and a warm-up that runs on them
reads memory that nobody filled. At a replay they are right: the model's graph of the same
descriptor has just been replayed, and left the features that the head reads.

*Decode* runs one token of each request, with the step to the next position before it, with lengths
and metadata of its own: a graph for each number of requests.

The managers call whatever they are given; :class:`DraftHeadGraphs` knows the head. It keeps no
reference to the speculator: what is needed to capture is gone afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from sample_engine.attention.interface import AttentionSpec, CommonAttentionMetadata
from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor
from sample_engine.graphs.dummy import DummyInput
from sample_engine.graphs.manager import CudaGraphManager
from sample_engine.graphs.model_graphs import ModelGraphs
from sample_engine.graphs.state import (
    AttentionState,
    AttentionStatePair,
    CreateForwardFn,
    ForwardFn,
)
from sample_engine.speculate.eagle.passes import (
    DecodeBuffers,
    EaglePasses,
    PlaceOfPass,
    advance,
)

__all__ = [
    "DecodeEagleCudaGraphManager",
    "DraftHead",
    "DraftHeadGraphs",
    "PrefillEagleCudaGraphManager",
    "PrefillForward",
]

_LAYER = "eagle.0"


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


class PrefillEagleCudaGraphManager(CudaGraphManager):
    """FULL graphs of the head's prefill, for descriptors that the model has FULL graphs of."""

    def capture(  # type: ignore[override]  # as in vLLM: it makes the factory itself
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

        return super().capture(create_forward_fn, progress_bar_desc)


class DecodeEagleCudaGraphManager(CudaGraphManager):
    """FULL graphs of the head's decode steps: one token of each request."""

    def capture(
        self,
        create_forward_fn: CreateForwardFn,
        progress_bar_desc: str = "Capturing decode CUDA graphs of the draft head",
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture with states of its own, made anew for each pass."""
        return super().capture(create_forward_fn, progress_bar_desc)


class DraftHead(Protocol):
    """What drives a head."""

    spec: AttentionSpec
    passes: EaglePasses
    buffers: DecodeBuffers
    max_model_len: int

    def decode_metadata(self, place: PlaceOfPass, common: CommonAttentionMetadata, /) -> Any:
        """Metadata of a decode pass, made anew."""


class DraftHeadGraphs:
    """FULL graphs of a head's prefill and decode passes."""

    def __init__(self, head: DraftHead, model: ModelGraphs) -> None:
        full = [d for d in model.manager.descs if d.cg_mode is CUDAGraphMode.FULL]
        # A head of another shape cannot use the model's metadata: its prefill stays eager.
        alike = head.spec == model.spec
        shared: dict[str, Any] = {
            "execution": model.manager.execution,
            "pool": model.manager.pool,
            "show_progress": model.manager.show_progress,
        }
        self.prefill = PrefillEagleCudaGraphManager(full if alike else (), **shared)
        self.decode = DecodeEagleCudaGraphManager({_decode_of(desc) for desc in full}, **shared)
        most = max((desc.num_tokens for desc in full), default=0)
        reqs = max((desc.num_reqs or 0 for desc in full), default=0)
        numbers = {"dtype": torch.int64, "device": head.spec.device}
        self._next_ids = torch.zeros(most, **numbers)  # [M]
        self._last_tokens = torch.zeros(reqs, **numbers)  # [R']

    def capture(
        self,
        head: DraftHead,
        model: ModelGraphs,
        attn_states: Mapping[BatchExecutionDescriptor, AttentionStatePair],
    ) -> None:
        """Capture both kinds, after the model's graphs, whose states these are."""
        prepared: dict[BatchExecutionDescriptor, DummyInput] = {}

        def prepare(desc: BatchExecutionDescriptor) -> None:
            prepared[desc] = model.fill_inputs(desc)
            self._next_ids.zero_()
            ends = prepared[desc].common.query_start_loc[1:] - 1
            self._last_tokens[: desc.num_reqs].copy_(ends)

        def prefill(
            desc: BatchExecutionDescriptor,
            attn_metadata: Mapping[str, Any],
            slot_mappings: Mapping[str, torch.Tensor],
            cg_mode: CUDAGraphMode,
        ) -> None:
            del cg_mode
            num_tokens, num_reqs = desc.num_tokens, desc.num_reqs or 0
            _, aux = model.outputs_of(desc)
            left = head.passes.prefill(
                self._next_ids[:num_tokens],
                prepared[desc].positions,
                aux,
                next(iter(slot_mappings.values())),
                self._last_tokens[:num_reqs],
                next(iter(attn_metadata.values())),
            )
            head.buffers.cut(num_reqs).store(*left)

        def decode(
            desc: BatchExecutionDescriptor, warmup: bool
        ) -> tuple[ForwardFn, AttentionState]:
            del warmup  # both passes get metadata of their own
            return _decode_pass(head, desc, model.fill_inputs(desc))

        self.prefill.capture(prefill, attn_states, prepare)
        self.decode.capture(decode)

    def run_prefill(
        self,
        desc: BatchExecutionDescriptor | None,  # of the model's graph of this step; None: without
        next_ids: torch.Tensor,  # [T'] int64
        last_tokens: torch.Tensor,  # [R'] int64
    ) -> bool:
        """Replay the prefill; False if there is no graph of it, and nothing was done."""
        if desc is None or desc not in self.prefill:
            return False
        self._next_ids[: next_ids.shape[0]].copy_(next_ids)
        self._last_tokens[: last_tokens.shape[0]].copy_(last_tokens)
        self.prefill.run(desc)
        return True

    def has_decode(self, num_reqs: int) -> bool:
        """Whether there is a graph of a decode pass of so many requests."""
        return BatchExecutionDescriptor(CUDAGraphMode.FULL, num_reqs, num_reqs, 1) in self.decode

    def run_decode(self, num_reqs: int) -> None:
        """Go one position further and replay the decode pass, of which there is a graph."""
        self.decode.run(BatchExecutionDescriptor(CUDAGraphMode.FULL, num_reqs, num_reqs, 1))

    def reset(self) -> None:
        """Let go of all graphs."""
        self.prefill.reset()
        self.decode.reset()


def _decode_of(desc: BatchExecutionDescriptor) -> BatchExecutionDescriptor:
    """The decode pass after a step of the model: one token of each request."""
    num_reqs = desc.num_reqs or 0
    return BatchExecutionDescriptor(CUDAGraphMode.FULL, num_reqs, num_reqs, 1)


def _decode_pass(
    head: DraftHead, desc: BatchExecutionDescriptor, dummy: DummyInput
) -> tuple[ForwardFn, AttentionState]:
    """A pass of nobody's requests whose texts become as long as they can."""
    buffers, max_model_len = head.buffers.cut(desc.num_tokens), head.max_model_len
    buffers.token_ids.zero_()
    buffers.hidden.zero_()
    buffers.positions.fill_(max(max_model_len - 2, 0))
    buffers.seq_lens.fill_(max_model_len)
    buffers.query_start_loc.copy_(dummy.common.query_start_loc)
    buffers.slot_mapping.copy_(dummy.common.slot_mapping)
    metadata = head.decode_metadata(buffers.place, dummy.common)

    def run(cg_mode: CUDAGraphMode) -> None:
        del cg_mode
        advance(buffers, dummy.common.block_table, head.spec.block_size, max_model_len)
        left = head.passes.decode(buffers.token_ids, buffers.hidden, buffers.place, metadata)
        buffers.store(*left)

    return run, AttentionState({_LAYER: metadata}, {_LAYER: buffers.slot_mapping})
