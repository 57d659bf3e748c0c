"""The interface of attention backends and the values that pass through it.

``attention.registry`` lists the backends.

Shapes, in this file and in all backends::

    T  num_tokens    tokens of this step, of all requests, packed
    R  num_reqs      requests of this step; R' >= R where a graph pads
    B  num_blocks    blocks of the KV cache, block 0 being the null block
    P  block_size    tokens in a block (a page)
    H, K, D          query heads, KV heads, head size; H % K == 0
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import torch

__all__ = [
    "PAD_SLOT_ID",
    "AttentionBackend",
    "AttentionSpec",
    "CommonAttentionMetadata",
    "LayerCache",
]

# The slot of a token that is only there to fill up a batch: nothing is written for it.
PAD_SLOT_ID = -1


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """What a backend has to compute: one kind of attention layer on one device."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    window: int | None = None  # how many tokens a query sees, itself included; None: all before it
    fp8_cache: bool = False  # keys and values are kept as ``kernels.fp8_cache`` says

    @property
    def scale(self) -> float:
        """The factor on the products of queries and keys: ``1 / sqrt(D)``."""
        return float(self.head_dim**-0.5)


class LayerCache(NamedTuple):
    """The KV cache of one layer; of an FP8 cache the codes, see ``kernels.fp8_cache``."""

    key: torch.Tensor  # [B, P, K, D]
    value: torch.Tensor  # [B, P, K, D]


@dataclasses.dataclass(frozen=True)
class CommonAttentionMetadata:
    """What every backend needs to know of one step's batch; the same for all layers.

    The queries of a request are the last ``query_len`` positions of its sequence, so that prefill,
    chunked prefill, decode and the verification of drafts are one case. Padded requests have no
    queries and a length of 0; padded tokens have the slot ``PAD_SLOT_ID`` and belong to nobody.
    Tensors without ``_cpu`` are on the device and may be persistent buffers that a graph reads.
    """

    query_start_loc: torch.Tensor  # [R' + 1] int32
    seq_lens: torch.Tensor  # [R'] int32, this step's queries included
    block_table: torch.Tensor  # [R', max_blocks] int32; the null block where there is none
    slot_mapping: torch.Tensor  # [T'] int64
    query_start_loc_cpu: torch.Tensor  # [R' + 1] int32
    seq_lens_cpu: torch.Tensor  # [R'] int32
    num_reqs: int  # R, without padding
    num_tokens: int  # T, without padding
    max_query_len: int
    max_seq_len: int


class AttentionBackend(abc.ABC):
    """One way to compute attention. Made once per engine; holds no state of a batch.

    What belongs to a batch is in the metadata that :meth:`build` returns: a backend that plans
    lazily keeps its plan there.
    """

    name: ClassVar[str]
    #: Why a FULL graph cannot hold its attention, in words; None: it can. It can if its forward
    #: pass reads all lengths on the device, has no shape that depends on them, and does not need
    #: more of the host than the longest text and the most queries.
    why_no_full_graph: ClassVar[str | None] = "nobody has said that it can be captured"
    #: Whether it computes ``spec.window``.
    has_windows: ClassVar[bool] = False
    #: Whether it writes and reads an FP8 cache (``spec.fp8_cache``).
    reads_fp8: ClassVar[bool] = False

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec

    @property
    def needs_host_lengths(self) -> bool:
        """Whether one query per request needs the exact ``seq_lens_cpu``; else bounds will do."""
        return False

    @property
    def description(self) -> str:
        """The name, and what else a user should know of what runs: libraries, fallbacks."""
        return self.name

    @classmethod
    @abc.abstractmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """Why this backend cannot run ``spec`` on this machine, in words; None: it can.

        It must not touch the driver: it looks for libraries and asks NVML (``device.platform``).
        """

    @abc.abstractmethod
    def build(self, common: CommonAttentionMetadata) -> Any:
        """Metadata of a batch, for this backend; :meth:`forward` gets it back for every layer."""

    @abc.abstractmethod
    def write_kv(
        self,
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
    ) -> None:
        """Write keys and values of the tokens to their slots: slot = block * P + offset."""

    @abc.abstractmethod
    def forward(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: Any,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        """Causal attention of the queries over their sequences, written to ``out``.

        Rows of padded tokens are left as they are.
        """

    def write_and_attend(
        self,
        query: torch.Tensor,  # [T', H, D]
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
        metadata: Any,
        *,
        zeros: bool = False,
    ) -> torch.Tensor:  # [T', H, D]
        """:meth:`write_kv`, then :meth:`forward`, where nobody holds memory for the result.

        Rows of padded tokens are ``zeros``, or may be anything. A backend may do it in fewer steps.
        """
        self.write_kv(key, value, cache, slot_mapping)
        out = torch.zeros_like(query) if zeros else torch.empty_like(query)
        self.forward(query, cache, metadata, out)
        return out
