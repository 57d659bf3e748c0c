"""Graphs of the pieces between attentions: attention itself and its cache stay eager.

So any backend and any mix of prompts and decodes runs with graphs, filled up to a number of tokens.
Attention comes in as a callable that writes to ``out``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from sample_engine.graphs.buffers import OutputBuffers, PieceBuffers
from sample_engine.graphs.execution import CapturedGraph, GraphExecution
from sample_engine.model.llama import Llama

__all__ = ["AttendInto", "PiecewiseForward"]


class AttendInto(Protocol):
    """Attention of one layer, with its write to the KV cache."""

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,  # [T', H, D]
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        out: torch.Tensor,  # [T', H, D]
        /,
    ) -> None:
        """Write keys and values to the cache, and what the queries gather to ``out``."""


class PiecewiseForward:
    """A model's forward pass in pieces: ``L + 1`` graphs for ``L`` layers, for each size.

    Piece ``i`` ends with the queries, keys and values of layer ``i``; the last one with the hidden
    states. Results lie in ``outputs`` as they do after a FULL graph.
    """

    def __init__(
        self,
        model: Llama,
        outputs: OutputBuffers,
        buffers: PieceBuffers,
        execution: GraphExecution,
        pool: Any,
        aux_layers: Sequence[int] = (),
    ) -> None:
        self._model = model
        self._layers: list[Any] = list(model.layers)
        self._outputs = outputs
        self._buffers = buffers
        self._execution = execution
        self._pool = pool
        self._aux_layers = tuple(aux_layers)
        self._graphs: dict[int, list[CapturedGraph]] = {}  # by number of tokens

    def capture(
        self,
        input_ids: torch.Tensor,  # [T'] int64, persistent
        positions: torch.Tensor,  # [T'] int64, persistent
        attend: AttendInto,
    ) -> None:
        """Capture the pieces of a size; attention runs between them, on whatever lies there."""
        num_tokens = input_ids.shape[0]
        graphs: list[CapturedGraph] = []
        for index in range(len(self._layers) + 1):
            piece = self._piece(index, input_ids, positions)
            graphs.append(self._execution.capture(piece, self._pool))
            self._attend(index, num_tokens, attend)
        self._graphs[num_tokens] = graphs

    def run_eagerly(
        self,
        input_ids: torch.Tensor,  # [T'] int64
        positions: torch.Tensor,  # [T'] int64
        attend: AttendInto,
    ) -> None:
        """The same pass without graphs: the warm-up."""
        for index in range(len(self._layers) + 1):
            self._piece(index, input_ids, positions)()
            self._attend(index, input_ids.shape[0], attend)

    def replay(self, num_tokens: int, attend: AttendInto) -> None:
        """Run the pieces of a size that was captured, with attention in between."""
        for index, graph in enumerate(self._graphs[num_tokens]):
            graph.replay()
            self._attend(index, num_tokens, attend)

    def reset(self) -> None:
        """Let go of all graphs."""
        for graphs in self._graphs.values():
            for graph in graphs:
                graph.reset()
        self._graphs.clear()

    def _attend(self, index: int, num_tokens: int, attend: AttendInto) -> None:
        """The attention after a piece; after the last one there is none."""
        if index == len(self._layers):
            return
        buffers = self._buffers
        each = (buffers.query, buffers.key, buffers.value, buffers.mixed)
        query, key, value, mixed = (rows[:num_tokens] for rows in each)
        attend(index, query, key, value, mixed)

    def _piece(
        self,
        index: int,
        input_ids: torch.Tensor,  # [T'] int64
        positions: torch.Tensor,  # [T'] int64
    ) -> Callable[[], None]:
        """What runs before the attention of layer ``index``, or after the last one."""
        num_tokens = input_ids.shape[0]

        def run() -> None:
            x, normed = self._end_of_layer(index - 1, input_ids, positions)
            if index == len(self._layers):
                self._outputs.hidden[:num_tokens].copy_(normed)
                return
            buffers = self._buffers
            cos, sin = buffers.cos[:num_tokens], buffers.sin[:num_tokens]
            parts = self._layers[index].before_attention(normed, cos, sin)
            buffers.stream[:num_tokens].copy_(x)
            for kept, part in zip((buffers.query, buffers.key, buffers.value), parts, strict=True):
                kept[:num_tokens].copy_(part)

        return run

    def _end_of_layer(
        self,
        layer: int,  # -1: the embedding
        input_ids: torch.Tensor,  # [T'] int64
        positions: torch.Tensor,  # [T'] int64
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [T', C], [T', C]
        """The residual stream after a layer whose attention is done, and that normed."""
        num_tokens, buffers = input_ids.shape[0], self._buffers
        if layer < 0:
            angles = self._model.angles(positions)
            for kept, each in zip((buffers.cos, buffers.sin), angles, strict=True):
                kept[:num_tokens].copy_(each)
            return self._model.embedded(input_ids)
        norm = self._model.norm_after(layer)
        found: tuple[torch.Tensor, torch.Tensor] = self._layers[layer].after_attention(
            buffers.stream[:num_tokens], buffers.mixed[:num_tokens], norm
        )
        for kept, wished in zip(self._outputs.aux, self._aux_layers, strict=True):
            if wished == layer:
                kept[:num_tokens].copy_(found[0])
        return found
