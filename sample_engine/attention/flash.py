"""The backend of the FlashAttention library that is installed (``flash_libraries`` finds it).

A library without pages gets copies: each layer gathers the keys and values of the requests it
serves into contiguous memory, which moves every one of their bytes once to and once from memory.
Next to a long prefill that is little (4 sequences of 4096 tokens with 8 KV heads of 128: 0.27 GB
moved, about 0.06 ms on an H200 whose FlashAttention-3 then computes for 0.9 ms); for a decode it
would triple the work, so requests with few queries are left to our Triton kernels where Triton is
installed. ``description`` says which of this is at work.
"""

from __future__ import annotations

import dataclasses

import torch

from sample_engine.attention.capability import capability_of
from sample_engine.attention.flash_libraries import FlashLibrary, find_library
from sample_engine.attention.interface import (
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
    LayerCache,
)
from sample_engine.attention.kernels import reference as oracle
from sample_engine.attention.triton_backend import (
    TritonBackend,
    TritonMetadata,
    largest_of,
    why_no_triton,
)

__all__ = ["FlashBackend", "FlashMetadata"]


@dataclasses.dataclass(frozen=True)
class FlashMetadata:
    """A batch, and which of its requests go which way."""

    common: CommonAttentionMetadata
    kv_start: torch.Tensor | None  # [R' + 1] int32: where gathered keys start; None: pages
    num_keys: int  # that are gathered
    short: TritonMetadata | None  # for the requests that our kernels serve; None: there are none


class FlashBackend(AttentionBackend):
    """FlashAttention 4, 3 or 2, whichever is there; in this order."""

    name = "flash"
    why_no_full_graph = "its libraries settle on the host, by each step's lengths, what they launch"

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        library, why_none = find_library(spec, capability_of(spec.device))
        if library is None:
            raise ValueError(f"FlashBackend cannot be made: {why_none}.")
        self.library: FlashLibrary = library()
        with_triton = not library.paged and why_no_triton(spec) is None
        self._kernels = TritonBackend(spec) if with_triton else None

    @property
    def needs_host_lengths(self) -> bool:
        """Gathered keys are laid out on the CPU; our kernels take few queries off that."""
        return not self.library.paged and self._kernels is None

    @property
    def description(self) -> str:
        """The library, and what it does not do itself."""
        if self.library.paged:
            return f"{self.name} ({self.library.module})"
        decode = "; few queries: triton" if self._kernels is not None else ""
        return f"{self.name} ({self.library.module} over gathered pages{decode})"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """It needs a GPU and one of the libraries."""
        if spec.device.type != "cuda":
            return f"it needs a GPU, the model is on {spec.device}"
        return find_library(spec, capability_of(spec.device))[1] or None

    def build(self, common: CommonAttentionMetadata) -> FlashMetadata:
        """Without pages in the library: where the gathered keys of each request go."""
        if self.library.paged:
            return FlashMetadata(common, None, 0, None)
        lengths, short = common.seq_lens_cpu, None
        if self._kernels is not None:
            limit = self._kernels.most_queries
            queries = common.query_start_loc_cpu[1:] - common.query_start_loc_cpu[:-1]
            lengths = torch.where(queries > limit, lengths, 0)
            short = self._kernels.build(common) if largest_of(common, limit)[0] else None
        starts = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32)
        starts[1:] = lengths.cumsum(0)
        on_device = starts.to(common.seq_lens.device, non_blocking=True)
        return FlashMetadata(common, on_device, int(starts[-1]), short)

    def write_kv(
        self,
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
    ) -> None:
        """Write keys and values to their slots, with our kernel where Triton is installed."""
        if why_no_triton(self.spec) is not None:
            oracle.write_kv(key, value, cache.key, cache.value, slot_mapping)
            return
        from sample_engine.attention.kernels.write_kv import write_kv

        write_kv(key, value, cache.key, cache.value, slot_mapping)

    def forward(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: FlashMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        """The library for what it serves, then our kernels for the rest."""
        common, short = metadata.common, metadata.short
        if metadata.kv_start is None:
            self._attend(query, cache, common.seq_lens, common.block_table, common, out)
        elif metadata.num_keys:
            gathered = self._gathered(cache, metadata, metadata.kv_start)
            self._attend(query, gathered, metadata.kv_start, None, common, out)
        if short is not None and short.partial_out is not None and short.partial_lse is not None:
            assert self._kernels is not None, "build() made metadata for it"
            self._kernels.decode(
                query, cache, common, out, short.partial_out, short.partial_lse, short.splits
            )

    def _attend(
        self,
        query: torch.Tensor,  # [T', H, D]
        keys_and_values: LayerCache,
        kv: torch.Tensor,
        block_table: torch.Tensor | None,  # [R', max_blocks] int32
        common: CommonAttentionMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        result = self.library.attend(
            query,
            keys_and_values.key,
            keys_and_values.value,
            common.query_start_loc,
            kv,
            block_table,
            common.max_query_len,
            common.max_seq_len,
            self.spec.scale,
        )
        out[: common.num_tokens].copy_(result[: common.num_tokens])

    def _gathered(
        self,
        cache: LayerCache,
        metadata: FlashMetadata,
        kv_start: torch.Tensor,  # [R' + 1] int32
    ) -> LayerCache:
        """Keys and values as [S, K, D]."""
        common = metadata.common
        shape = (metadata.num_keys, *cache.key.shape[2:])
        both = []
        for each in cache:
            out = torch.empty(shape, dtype=each.dtype, device=each.device)
            if self._kernels is None:
                oracle.gather_kv(each, common.block_table, kv_start, out)
            else:
                from sample_engine.attention.kernels.gather_kv import gather_kv

                gather_kv(each, common.block_table, kv_start, out, max_seq_len=common.max_seq_len)
            both.append(out)
        return LayerCache(*both)
