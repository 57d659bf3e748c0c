"""The graphs of the model's forward pass: which there are, their capture, and how to run one.

Whoever runs the model (attention backend, KV cache) comes in as a :class:`ForwardPass` for the time
of the capture; no reference to it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from sample_engine.attention.interface import (
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
)
from sample_engine.attention.registry import capturable_backends
from sample_engine.batch.input_batch import InputBatch
from sample_engine.config import CUDAGraphMode
from sample_engine.errors import ConfigError
from sample_engine.graphs.buffers import OutputBuffers, PieceBuffers
from sample_engine.graphs.descriptor import (
    BatchExecutionDescriptor,
    capture_descriptors,
    query_len_of,
)
from sample_engine.graphs.dummy import DummyInput, fill_with_dummy
from sample_engine.graphs.execution import GraphExecution
from sample_engine.graphs.manager import CudaGraphManager
from sample_engine.graphs.piecewise import AttendInto, PiecewiseForward
from sample_engine.graphs.state import (
    AttentionState,
    AttentionStatePair,
    CreateForwardFn,
    ForwardFn,
)
from sample_engine.model.llama import Llama

__all__ = ["ForwardPass", "ModelGraphs", "allowed_mode"]


def allowed_mode(
    mode: CUDAGraphMode, backend: AttentionBackend | type[AttentionBackend]
) -> CUDAGraphMode:
    """What of the wished graphs the backend allows: FULL_AND_PIECEWISE may become PIECEWISE.

    Raises :class:`ConfigError` if FULL graphs alone are wished and it allows none.
    """
    reason = backend.why_no_full_graph
    if reason is None or "FULL" not in mode.value:
        return mode
    if "PIECEWISE" in mode.value:
        return CUDAGraphMode.PIECEWISE
    raise ConfigError(
        f"cudagraph_mode={mode.value!r} with attention_backend={backend.name!r}: {reason}. Use "
        "cudagraph_mode='PIECEWISE', or a backend that can be captured "
        f"({', '.join(capturable_backends())})."
    )


class ForwardPass(Protocol):
    """What knows the attention backend and the KV cache."""

    def build_metadata(self, common: CommonAttentionMetadata) -> Mapping[str, Any]:
        """Metadata of a batch for each layer, by its name, made anew."""

    def attention(
        self,
        slot_mapping: torch.Tensor,  # [T'] int64
        attn_metadata: Mapping[str, Any],
    ) -> AttendInto:
        """Attention of a batch, as a callable that serves all layers."""


class ModelGraphs:
    """The model's graphs. Before :meth:`capture` every batch is dispatched to run without."""

    def __init__(
        self,
        mode: CUDAGraphMode,
        *,
        model: Llama,
        spec: AttentionSpec,
        inputs: InputBatch,
        execution: GraphExecution,
        max_num_reqs: int,
        max_num_tokens: int,
        max_model_len: int,
        aux_layers: Sequence[int] = (),
        query_lens: Iterable[int] = (1,),  # of requests that only decode: 1, and 1 + k drafts
        sizes: Sequence[int] | None = None,
        show_progress: bool | None = None,
    ) -> None:
        self.spec = spec
        self._inputs = inputs
        self._max_num_reqs = max_num_reqs
        self._max_model_len = max_model_len
        descs = capture_descriptors(
            mode,
            max_num_reqs=max_num_reqs,
            max_num_tokens=min(max_num_tokens, max_num_reqs * max_model_len),
            query_lens=query_lens,
            sizes=sizes,
        )
        self.manager = CudaGraphManager(descs, execution, show_progress=show_progress)
        most = max((desc.num_tokens for desc in descs), default=0)
        size = model.config.hidden_size
        self._outputs = OutputBuffers(most, size, len(aux_layers), spec.dtype, spec.device)
        self._model = model
        self._aux_layers = tuple(aux_layers)
        self._mixed = torch.zeros(
            most, spec.num_heads, spec.head_dim, dtype=spec.dtype, device=spec.device
        )  # [M, H, D], what attention returned
        in_pieces = [d.num_tokens for d in descs if d.cg_mode is CUDAGraphMode.PIECEWISE]
        self._pieces = PiecewiseForward(
            model,
            self._outputs,
            PieceBuffers(
                max(in_pieces, default=0), size, spec, self._mixed, model.config.rotary_dim
            ),
            execution,
            self.manager.pool,
            aux_layers,
        )

    def manager_of_what_follows(self) -> CudaGraphManager:
        """A manager of graphs that are replayed after the FULL ones, in the same pool."""
        return CudaGraphManager(
            [desc for desc in self.manager.descs if desc.cg_mode is CUDAGraphMode.FULL],
            self.manager.execution,
            pool=self.manager.pool,
            show_progress=self.manager.show_progress,
        )

    def capture(
        self, forward_pass: ForwardPass
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture all. What the persistent inputs held is lost, block tables included."""
        self._pieces.reset()
        return self.manager.capture(self.factory(forward_pass))

    def factory(self, forward_pass: ForwardPass) -> CreateForwardFn:
        """What prepares a pass of a descriptor's size: both passes get metadata of their own."""

        def create_forward_fn(
            desc: BatchExecutionDescriptor, warmup: bool
        ) -> tuple[ForwardFn, AttentionState]:
            del warmup  # made from inputs that are filled anew, in either case
            dummy = self.fill_inputs(desc)
            metadata = forward_pass.build_metadata(dummy.common)
            slots = dummy.common.slot_mapping
            state = AttentionState(metadata, dict.fromkeys(metadata, slots))
            attend = forward_pass.attention(slots, metadata)
            if desc.cg_mode is CUDAGraphMode.PIECEWISE:
                return partial(self._in_pieces, dummy, attend), state
            return partial(self._whole_pass, dummy, attend), state

        return create_forward_fn

    def fill_inputs(self, desc: BatchExecutionDescriptor) -> DummyInput:
        """Put nobody's batch of a descriptor's size into the persistent inputs."""
        self._inputs.forget_tables()
        return fill_with_dummy(
            self._inputs.buffers,
            desc,
            max_num_reqs=self._max_num_reqs,
            longest=self._max_model_len,
        )

    def dispatch(self, counts: Sequence[int]) -> BatchExecutionDescriptor:
        """How to run a batch whose requests have so many tokens each."""
        query_len = query_len_of(counts, self.manager.query_lens)
        return self.manager.dispatch(len(counts), sum(counts), query_len)

    def run(self, desc: BatchExecutionDescriptor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Replay a FULL graph: hidden states and features ``[T', C]``, until the next pass."""
        self.manager.run(desc)
        return self.outputs_of(desc)

    def outputs_of(self, desc: BatchExecutionDescriptor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Where a pass of this size leaves hidden states and features: always the same memory."""
        return self._outputs.of(desc.num_tokens)

    def run_pieces(
        self, desc: BatchExecutionDescriptor, attend: AttendInto
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Replay the pieces of a PIECEWISE size, with this batch's attention between them."""
        self._pieces.replay(desc.num_tokens, attend)
        return self._outputs.of(desc.num_tokens)

    def reset(self) -> None:
        """Let go of all graphs: from then on every batch runs without."""
        self._pieces.reset()
        self.manager.reset()

    def _in_pieces(self, dummy: DummyInput, attend: AttendInto, cg_mode: CUDAGraphMode) -> None:
        pieces = self._pieces
        captures = cg_mode is CUDAGraphMode.PIECEWISE
        run = pieces.capture if captures else pieces.run_eagerly
        run(dummy.input_ids, dummy.positions, attend)

    def _whole_pass(self, dummy: DummyInput, attend_into: AttendInto, _: CUDAGraphMode) -> None:
        """Device work alone, which may be captured.

        Attention leaves rows of nobody's tokens as they are. So its results lie in memory that was
        filled once, and not in some of the pool, which may hold anything.
        """
        mixed = self._mixed[: dummy.input_ids.shape[0]]

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            attend_into(layer, query, key, value, mixed)
            return mixed

        hidden, aux = self._model(dummy.input_ids, dummy.positions, attend, self._aux_layers)
        self._outputs.store(hidden, aux)
