"""The values that pass between a graph manager and whoever prepares a forward pass for it.

The metadata of attention is what the backend made; nothing here looks into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch

from sample_engine.config import CUDAGraphMode
from sample_engine.graphs.descriptor import BatchExecutionDescriptor

__all__ = ["AttentionState", "AttentionStatePair", "CreateForwardFn", "ForwardFn"]


class AttentionState(NamedTuple):
    """What attention needs of a batch, by the layer's name."""

    attn_metadata: Mapping[str, Any]
    slot_mappings: Mapping[str, torch.Tensor]  # [T'] int64 each


class AttentionStatePair(NamedTuple):
    """The state of the warm-up and that of the capture.

    For a FULL graph they are two objects, each made for its pass: a backend that initializes its
    metadata on first use does so in both, and the graph holds that work. Around PIECEWISE graphs
    attention runs eagerly, so it is one object twice. Persistent inputs are shared in any case.
    """

    warmup: AttentionState
    captured: AttentionState


class ForwardFn(Protocol):
    """Runs a batch of a fixed size."""

    def __call__(self, cg_mode: CUDAGraphMode, /) -> None:
        """Run it. ``PIECEWISE``: and capture its pieces. Within a FULL capture it gets ``NONE``."""


class CreateForwardFn(Protocol):
    """Prepares a batch of a descriptor's size, outside of any graph."""

    def __call__(
        self, desc: BatchExecutionDescriptor, warmup: bool
    ) -> tuple[ForwardFn, AttentionState]:
        """Put a batch of this size into the persistent inputs, and make metadata for it anew.

        It is called for each pass: what the inputs hold then belongs to this descriptor, whichever
        was prepared before.
        """
