"""The backend of our Triton kernels.

A batch is served by two kernels, of which each takes the requests that suit it and skips the
others: decode those with few queries, prefill the rest. What of it is launched, and how keys are
split, is settled on the host in ``build`` from lengths the host knows; nothing waits for the
device. The host's longest lengths bound a grid, the kernels read the true ones on the device: a
graph that is captured with longest lengths serves all shorter batches.

How a kernel is tuned is in ``tuning``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os

import torch

from sample_engine.attention.capability import capability_of, num_processors
from sample_engine.attention.interface import (
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
    LayerCache,
)
from sample_engine.attention.kernels.splits import Splits, UnplannedSplits, partials

__all__ = ["TritonBackend", "TritonMetadata", "largest_of", "why_no_triton"]

_LEAST_CAPABILITY = (8, 0)
_LEAST_FOR_FP8 = (8, 9)  # where the processor itself unpacks FP8
_LARGEST_HEAD = 256  # a larger one does not fit into shared memory with these tiles


@dataclasses.dataclass(frozen=True)
class TritonMetadata:
    """A batch and how it is cut. One object serves all layers, one after the other."""

    common: CommonAttentionMetadata
    splits: UnplannedSplits
    prefills: bool  # whether there are requests with more queries than decode takes
    partial_out: torch.Tensor | None  # [N, Q, H, D] float32; None: nobody has few queries
    partial_lse: torch.Tensor | None  # [N, Q, H] float32


class TritonBackend(AttentionBackend):
    """Our kernels, on a GPU; on a CPU in Triton's interpreter, for tests."""

    name = "triton"
    why_no_full_graph = None
    reads_fp8 = True

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        from sample_engine.attention import tuning

        capability = capability_of(spec.device)
        self.prefill_config = tuning.prefill_config(spec, capability, paged=True)
        self.decode_config = tuning.decode_config(spec, capability)
        self.overlap = tuning.overlaps(capability)
        self.most_queries = tuning.most_decode_queries(spec)
        self.num_processors = num_processors(spec.device)

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """It needs Triton, and a GPU that is not too old or Triton's interpreter."""
        return why_no_triton(spec)

    def build(self, common: CommonAttentionMetadata) -> TritonMetadata:
        """Split the keys of the requests with few queries, and make room for their parts."""
        from sample_engine.attention import tuning

        spec = self.spec
        most, prefills = largest_of(common, self.most_queries)
        num_reqs = common.seq_lens.shape[0]
        splits = tuning.splits_for(
            self.decode_config,
            spec.num_kv_heads,
            num_reqs,
            common.max_seq_len,
            self.num_processors,
        )
        if not most:
            return TritonMetadata(common, splits, prefills, None, None)
        out, lse = partials(splits, num_reqs, most, spec.num_heads, spec.head_dim, spec.device)
        return TritonMetadata(common, splits, prefills, out, lse)

    def write_kv(
        self,
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
    ) -> None:
        """Write keys and values to their slots."""
        from sample_engine.attention.kernels.write_kv import write_kv

        write_kv(key, value, cache.key, cache.value, slot_mapping, overlap=self.overlap)

    def forward(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: TritonMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        """Prefill for the requests with many queries, decode for those with few."""
        if metadata.prefills:
            parts = metadata.partial_out
            self.prefill(query, cache, metadata.common, out, 0 if parts is None else parts.shape[1])
        if metadata.partial_out is not None and metadata.partial_lse is not None:
            parts, lse = metadata.partial_out, metadata.partial_lse
            self.decode(query, cache, metadata.common, out, parts, lse, metadata.splits)

    def prefill(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        common: CommonAttentionMetadata,
        out: torch.Tensor,  # [T', H, D]
        skip_query_len: int,
    ) -> None:
        """Serve the requests with more queries than ``skip_query_len``."""
        from sample_engine.attention.kernels.prefill_paged import prefill_paged

        prefill_paged(
            query,
            cache.key,
            cache.value,
            common.block_table,
            common.query_start_loc,
            common.seq_lens,
            out,
            self.spec.scale,
            skip_query_len,
            max_query_len=common.max_query_len,
            config=self.prefill_config,
        )

    def decode(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        common: CommonAttentionMetadata,
        out: torch.Tensor,  # [T', H, D]
        partial_out: torch.Tensor,  # [N, Q, H, D] float32
        partial_lse: torch.Tensor,  # [N, Q, H] float32
        splits: Splits,
    ) -> None:
        """Serve the requests with 1 to Q queries."""
        from sample_engine.attention import tuning
        from sample_engine.attention.kernels.combine_splits import combine_splits
        from sample_engine.attention.kernels.decode_paged import decode_paged

        starts, lengths = common.query_start_loc, common.seq_lens
        may_overlap = tuning.decode_overlaps(lengths.shape[0], common.max_seq_len)
        overlap = self.overlap and may_overlap
        decode_paged(
            query,
            cache.key,
            cache.value,
            common.block_table,
            starts,
            lengths,
            out,
            partial_out,
            partial_lse,
            self.spec.scale,
            splits,
            config=self.decode_config,
            overlap=overlap,
        )
        combine_splits(partial_out, partial_lse, starts, lengths, out, splits, overlap=overlap)


def largest_of(common: CommonAttentionMetadata, limit: int) -> tuple[int, bool]:
    """The most queries of a request that has ``limit`` at most, and whether there are others."""
    if common.max_query_len <= limit:
        return common.max_query_len, False
    starts = common.query_start_loc_cpu
    queries = starts[1:] - starts[:-1]
    return int(torch.where(queries <= limit, queries, 0).max()), True


def why_no_triton(spec: AttentionSpec) -> str | None:
    """Why our kernels cannot run here; None: they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install triton)"
    if spec.head_dim > _LARGEST_HEAD:
        return f"head_dim={spec.head_dim}: the kernels go up to {_LARGEST_HEAD}"
    if spec.device.type != "cuda":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return _why_not_interpreted(spec)
        return f"it needs a GPU, the model is on {spec.device} (TRITON_INTERPRET=1: for tests)"
    capability = capability_of(spec.device)
    needed = _LEAST_FOR_FP8 if spec.fp8_cache else _LEAST_CAPABILITY
    if capability is not None and capability < needed:
        found, least = (".".join(map(str, each)) for each in (capability, needed))
        what = " for an FP8 KV cache" if spec.fp8_cache else ""
        return f"{spec.device} has compute capability {found}; it needs {least}{what}"
    return None


def _why_not_interpreted(spec: AttentionSpec) -> str | None:
    if spec.dtype == torch.bfloat16:
        return "Triton's interpreter gets bfloat16 wrong without a word"
    return None
