"""The backend in plain torch, the oracle of the engine: it runs everywhere and is exact.

It computes in a type wider than the model's (float64 for float32), so that a request's result does
not depend on the batch or the chunks it is computed in. It is not made to be fast.

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
from sample_engine.attention.kernels.fp8_cache import take_blocks

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
    why_no_full_graph = None
    has_windows = True
    reads_fp8 = True

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
            _attend_together(query, cache, common, out, self.spec)
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
            window=self.spec.window,
        )


def _attend_together(
    query: torch.Tensor,  # [T', H, D]
    cache: LayerCache,
    common: CommonAttentionMetadata,
    out: torch.Tensor,  # [T', H, D]
    spec: AttentionSpec,
) -> None:
    """Attention of all requests, each filled up to the most queries and the longest sequence."""
    starts, lengths = common.query_start_loc, common.seq_lens
    num_queries, num_reqs, device = common.max_query_len, lengths.shape[0], query.device
    rows = torch.arange(num_queries, device=device)
    tokens = (starts[:-1, None] + rows).clamp(max=query.shape[0] - 1)  # [R', Q]
    page, num_kv_heads, dim = cache.key.shape[1:]
    blocks = common.block_table[:, : -(-common.max_seq_len // page)]  # [R', blocks]
    columns = torch.arange(blocks.shape[1] * page, device=device)
    past = columns >= lengths[:, None]  # [R', S]
    position = (lengths - starts[1:] + starts[:-1])[:, None] + rows  # [R', Q]
    hidden = past[:, None, :] | (columns > position[:, :, None])  # [R', Q, S]
    if spec.window is not None:
        hidden |= columns <= position[:, :, None] - spec.window
    wide = query[tokens].to(oracle.wider(query.dtype)) * spec.scale  # [R', Q, H, D]
    groups = wide.unflatten(2, (num_kv_heads, -1)).unbind(2)  # [R', Q, G, D] for each KV head
    mixed = []
    for head, group in enumerate(groups):
        key, value = (_rows_of(each, head, blocks, wide.dtype) for each in cache)  # [R', S, D]
        value.masked_fill_(past[:, :, None], 0.0)  # what was never written may be NaN
        scores = torch.bmm(group.flatten(1, 2), key.transpose(1, 2))  # [R', Q * G, S]
        scores = scores.view(num_reqs, num_queries, -1, len(columns))
        scores.masked_fill_(hidden[:, :, None, :], float("-inf"))
        mixed.append(torch.bmm(scores.softmax(-1).flatten(1, 2), value))
    packed = torch.stack(mixed, 1).view(num_reqs, num_kv_heads, num_queries, -1, dim)
    _unpack(packed.transpose(1, 2).flatten(2, 3), starts, out)


def _rows_of(
    cache: torch.Tensor,  # [B, P, K, D]
    head: int,
    blocks: torch.Tensor,  # [R', blocks] int32
    kind: torch.dtype,
) -> torch.Tensor:
    """Keys or values of one head, all requests, in a wider type: [R', S, D]."""
    rows = take_blocks(cache, blocks.flatten(), head)
    return rows.to(kind).view(blocks.shape[0], -1, cache.shape[3])


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
