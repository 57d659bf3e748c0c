"""A backend that plans when it is first used, in the manner of FlashMLA.

``build`` returns metadata with ``plan=None``. The first ``forward`` with it plans on the device
(which items a decode's keys are cut into, see ``kernels.splits``) and keeps the plan and the room
for partial results in ``metadata.plan``; later layers find it there. So:

- The plan holds for the lengths at the time of that first forward pass. Whoever changes lengths in
  place has to make new metadata, or to plan again by setting ``plan`` to None.
- A graph contains the planning only if its metadata was not planned yet when capture began.
  Metadata that served a warm-up and then a capture leaves it out: the graph reads a plan that
  nobody makes anew. Warm-up and capture need metadata of their own.
- Requests with many queries need no plan; there is one all the same.

On a GPU the plan is made and read by our Triton kernels, elsewhere by their torch oracles, which
never wait for the device either: both can be captured.
"""

from __future__ import annotations

import dataclasses

import torch

from sample_engine.attention.capability import num_processors
from sample_engine.attention.interface import (
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
    LayerCache,
)
from sample_engine.attention.kernels import reference as oracle
from sample_engine.attention.kernels.splits import PlannedSplits, partials
from sample_engine.attention.triton_backend import (
    TritonBackend,
    largest_of,
    why_no_triton,
)

__all__ = ["LazyPlan", "LazyPlanBackend", "LazyPlanMetadata"]

_ITEMS_PER_PROCESSOR = 4
_MOST_QUERIES_ON_CPU = 16
_BLOCK_ON_CPU = 16
_PARTS_ON_CPU = 4


@dataclasses.dataclass(frozen=True)
class LazyPlan:
    """What the first forward pass of a batch worked out."""

    splits: PlannedSplits
    partial_out: torch.Tensor  # [N, Q, H, D] float32
    partial_lse: torch.Tensor  # [N, Q, H] float32


@dataclasses.dataclass
class LazyPlanMetadata:
    """A batch. ``plan`` is None until the first forward pass."""

    common: CommonAttentionMetadata
    most_queries: int  # of a request that the plan is for
    longer: bool  # whether there are requests with more
    plan: LazyPlan | None = None


class LazyPlanBackend(AttentionBackend):
    """Split decode after a plan that is made on first use."""

    name = "lazy_plan"
    why_no_full_graph = None
    reads_fp8 = True

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self._kernels = TritonBackend(spec) if spec.device.type == "cuda" else None

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """On a GPU it needs our Triton kernels; elsewhere nothing."""
        return why_no_triton(spec) if spec.device.type == "cuda" else None

    def build(self, common: CommonAttentionMetadata) -> LazyPlanMetadata:
        """The batch, without a plan."""
        limit = self._kernels.most_queries if self._kernels else _MOST_QUERIES_ON_CPU
        most, longer = largest_of(common, limit)
        return LazyPlanMetadata(common, max(most, 1), longer)

    def write_kv(
        self,
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
    ) -> None:
        """Write keys and values to their slots."""
        if self._kernels is not None:
            self._kernels.write_kv(key, value, cache, slot_mapping)
        else:
            oracle.write_kv(key, value, cache.key, cache.value, slot_mapping)

    def forward(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: LazyPlanMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        """Plan if this is the first layer of the batch, then attend as planned."""
        if metadata.plan is None:
            metadata.plan = self._plan(metadata)
        common, plan = metadata.common, metadata.plan
        parts, lse, splits = plan.partial_out, plan.partial_lse, plan.splits
        if self._kernels is not None:
            if metadata.longer:
                self._kernels.prefill(query, cache, common, out, metadata.most_queries)
            self._kernels.decode(query, cache, common, out, parts, lse, splits)
            return
        if metadata.longer:
            self._prefill_on_cpu(query, cache, metadata, out)
        num_blocks = -(-common.max_seq_len // self.spec.block_size)
        table, scale = common.block_table[:, :num_blocks], self.spec.scale
        starts, lengths = common.query_start_loc, common.seq_lens
        oracle.decode_paged(
            query, cache.key, cache.value, table, starts, lengths, out, parts, lse, scale, splits
        )
        oracle.combine_splits(parts, lse, starts, lengths, out, splits)

    def _plan(self, metadata: LazyPlanMetadata) -> LazyPlan:
        """Cut the keys of the batch into items, on the device."""
        common, spec = metadata.common, self.spec
        lengths, starts = common.seq_lens, common.query_start_loc
        most = metadata.most_queries
        if self._kernels is not None:
            from sample_engine.attention.kernels.plan_decode import plan_decode

            num_parts = _ITEMS_PER_PROCESSOR * num_processors(spec.device) // spec.num_kv_heads
            block_n = self._kernels.decode_config.block_n
            splits = plan_decode(lengths, starts, most, block_n, max(num_parts, 1))
        else:
            splits = oracle.plan_decode(lengths, starts, most, _BLOCK_ON_CPU, _PARTS_ON_CPU)
        size = (lengths.shape[0], most, spec.num_heads, spec.head_dim)
        return LazyPlan(splits, *partials(splits, *size, spec.device))

    def _prefill_on_cpu(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: LazyPlanMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        common = metadata.common
        oracle.prefill_paged(
            query,
            cache.key,
            cache.value,
            common.block_table,
            common.query_start_loc_cpu,
            common.seq_lens_cpu,
            out,
            self.spec.scale,
            metadata.most_queries,
        )
