"""Owns the backend in plain torch, the oracle of the engine: it runs everywhere and is exact.

It computes in a type wider than the model's (float64 for float32), so that a request's result does
not depend on the batch or the chunks it is computed in. It does not know how to be fast.

Batches in which all requests have about the same number of queries take one path for all: nothing
there waits for the device or has a shape that depends on data, so a graph may be captured over it,
and lengths may change before it is replayed. Others go request by request, with the lengths that
the host knows.
"""

from __future__ import annotations

import dataclasses

import torch

from sample_engine.attention.interface import (
    AttentionBackend,
    AttentionSpec,
    CommonAttentionMetadata,
    LayerCache,
)
from sample_engine.attention.kernels import reference as oracle

__all__ = ["ReferenceBackend", "ReferenceMetadata"]

# A dense batch computes at most so many times the queries that there are.
_MOST_WASTE = 2


@dataclasses.dataclass(frozen=True)
class ReferenceMetadata:
    """A batch, and whether its requests are computed together."""

    common: CommonAttentionMetadata
    dense: bool


class ReferenceBackend(AttentionBackend):
    """Attention in torch operations alone."""

    name = "reference"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        """It runs everywhere."""
        del spec
        return None

    def build(self, common: CommonAttentionMetadata) -> ReferenceMetadata:
        """The batch itself."""
        filled_up = common.seq_lens.shape[0] * common.max_query_len
        num_tokens = common.slot_mapping.shape[0]
        return ReferenceMetadata(common, dense=filled_up <= _MOST_WASTE * num_tokens)

    def write_kv(
        self,
        key: torch.Tensor,  # [T', K, D]
        value: torch.Tensor,  # [T', K, D]
        cache: LayerCache,
        slot_mapping: torch.Tensor,  # [T'] int64
    ) -> None:
        """Write keys and values to their slots."""
        oracle.write_kv(key, value, cache.key, cache.value, slot_mapping)

    def forward(
        self,
        query: torch.Tensor,  # [T', H, D]
        cache: LayerCache,
        metadata: ReferenceMetadata,
        out: torch.Tensor,  # [T', H, D]
    ) -> None:
        """Causal attention, all requests at once or one after the other."""
        common = metadata.common
        if metadata.dense:
            _attend_together(query, cache, common, out, self.spec.scale)
            return
        oracle.prefill_paged(
            query,
            cache.key,
            cache.value,
            common.block_table,
            common.query_start_loc_cpu,
            common.seq_lens_cpu,
            out,
            self.spec.scale,
        )


def _attend_together(
    query: torch.Tensor,  # [T', H, D]
    cache: LayerCache,
    common: CommonAttentionMetadata,
    out: torch.Tensor,  # [T', H, D]
    scale: float,
) -> None:
    """Attention of all requests, each filled up to the most queries and the longest sequence."""
    starts, lengths = common.query_start_loc, common.seq_lens
    num_queries, num_reqs, device = common.max_query_len, lengths.shape[0], query.device
    rows = torch.arange(num_queries, device=device)
    tokens = (starts[:-1, None] + rows).clamp(max=query.shape[0] - 1)  # [R', Q]
    keys, values = _pages(cache, common)  # [R', K, S, D]
    num_kv_heads, num_keys, dim = keys.shape[1:]
    columns = torch.arange(num_keys, device=device)
    past = columns >= lengths[:, None]  # [R', S]
    values.masked_fill_(past[:, None, :, None], 0.0)  # what was never written may be NaN
    position = (lengths - starts[1:] + starts[:-1])[:, None] + rows  # [R', Q]
    hidden = past[:, None, :] | (columns > position[:, :, None])  # [R', Q, S]
    grouped = query[tokens].to(keys.dtype).view(num_reqs, num_queries, num_kv_heads, -1, dim)
    grouped = grouped.permute(0, 2, 1, 3, 4) * scale  # [R', K, Q, G, D]
    scores = grouped.flatten(2, 3) @ keys.transpose(-1, -2)  # [R', K, Q * G, S]
    scores = scores.view(num_reqs, num_kv_heads, num_queries, -1, num_keys)
    scores.masked_fill_(hidden[:, None, :, None, :], float("-inf"))
    mixed = scores.softmax(-1).flatten(2, 3) @ values
    mixed = mixed.view(num_reqs, num_kv_heads, num_queries, -1, dim).permute(0, 2, 1, 3, 4)
    packed = mixed.reshape(num_reqs, num_queries, -1, dim)  # [R', Q, H, D]
    _unpack(packed, starts, out)


def _pages(cache: LayerCache, common: CommonAttentionMetadata) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all requests up to the longest, in the wider type: [R', K, S, D]."""
    page, num_kv_heads, dim = cache.key.shape[1:]
    num_blocks = -(-common.max_seq_len // page)
    blocks = common.block_table[:, :num_blocks].long()
    shape = (blocks.shape[0], num_kv_heads, num_blocks * page, dim)
    both = []
    for each in cache:
        wide = torch.empty(shape, dtype=oracle.wider(each.dtype), device=each.device)
        both.append(wide.copy_(each[blocks].flatten(1, 2).transpose(1, 2)))
    return both[0], both[1]


def _unpack(
    packed: torch.Tensor,  # [R', Q, H, D]
    starts: torch.Tensor,  # [R' + 1] int32
    out: torch.Tensor,  # [T', H, D]
) -> None:
    """Write each request's rows to its tokens; rows of nobody's tokens stay as they are."""
    tokens = torch.arange(out.shape[0], device=out.device, dtype=starts.dtype)
    last = packed.shape[0] - 1
    owner = torch.searchsorted(starts[1:], tokens, right=True).clamp(max=last)
    row = (tokens - starts[owner]).clamp(min=0, max=packed.shape[1] - 1)
    mine = (tokens < starts[-1])[:, None, None]
    out.copy_(torch.where(mine, packed[owner, row].to(out.dtype), out))
