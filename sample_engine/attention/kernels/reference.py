"""The oracles: for each kernel a function of the same name and arguments in plain torch.

They compute in a type wider than the inputs' (float64 for float32). ``plan_decode``,
``decode_paged`` and ``combine_splits`` never wait for the device and have no shape that depends on
data, so that they can be captured; the others read lengths on the host.
"""

from __future__ import annotations

import math

import torch

from sample_engine.attention.kernels.fp8_cache import stored_as, take_blocks
from sample_engine.attention.kernels.splits import PlannedSplits, Splits, item_tensors

__all__ = [
    "attend",
    "combine_splits",
    "decode_paged",
    "gather_kv",
    "plan_decode",
    "prefill_contiguous",
    "prefill_paged",
    "wider",
    "write_kv",
]

_MOST_SCORES = 1 << 22  # held at a time by ``attend``
_LN_2 = math.log(2.0)


def wider(dtype: torch.dtype) -> torch.dtype:
    """The type in which to compute."""
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32


def write_kv(
    key: torch.Tensor,  # [T', K, D]
    value: torch.Tensor,  # [T', K, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    slot_mapping: torch.Tensor,  # [T'] int64
) -> None:
    """Write keys and values to their slots; a negative slot (``PAD_SLOT_ID``) is skipped.

    What is to be skipped is written to the place of token 0 of the null block, as it is there: no
    shape depends on how many there are.
    """
    skipped = slot_mapping < 0
    slots = slot_mapping.clamp(min=0)
    block, offset = slots // key_cache.shape[1], slots % key_cache.shape[1]
    for rows, cache in ((key, key_cache), (value, value_cache)):
        for new, place in stored_as(rows, cache):
            skip = skipped.view(-1, *(1,) * (new.dim() - 1))
            place[block, offset] = torch.where(skip, place[block, offset], new)


def attend(
    query: torch.Tensor,  # [n, H, D]: the last n of L positions
    key: torch.Tensor,  # [L, K, D]
    value: torch.Tensor,  # [L, K, D]
    scale: float,
    window: int | None = None,  # how many tokens a query sees, itself included; None: all
) -> torch.Tensor:
    """Causal attention of one sequence, in the wider type: [n, H, D]."""
    num_queries, num_heads, dim = query.shape
    length, num_kv_heads = key.shape[:2]
    group = num_heads // num_kv_heads
    kind = wider(query.dtype)
    grouped = query.to(kind).view(num_queries, num_kv_heads, group, dim).permute(1, 2, 0, 3) * scale
    keys = key.to(kind).permute(1, 2, 0)  # [K, D, L]
    values = value.to(kind).permute(1, 0, 2)  # [K, L, D]
    out = torch.empty(num_queries, num_heads, dim, dtype=kind, device=query.device)
    step = max(1, _MOST_SCORES // (num_heads * length))
    columns = torch.arange(length, device=query.device)
    for first in range(0, num_queries, step):
        last = min(first + step, num_queries)
        rows = torch.arange(first, last, device=query.device) + (length - num_queries)
        part = grouped[:, :, first:last].reshape(num_kv_heads, -1, dim)  # [K, G * rows, D]
        scores = (part @ keys).view(num_kv_heads, group, last - first, length)
        scores.masked_fill_(columns > rows[:, None], float("-inf"))
        if window is not None:
            scores.masked_fill_(columns <= rows[:, None] - window, float("-inf"))
        weights = scores.softmax(-1).view(num_kv_heads, -1, length)
        mixed = (weights @ values).view(num_kv_heads, group, last - first, dim)
        out[first:last] = mixed.permute(2, 0, 1, 3).reshape(last - first, num_heads, dim)
    return out


def prefill_contiguous(
    query: torch.Tensor,  # [T, H, D]
    key: torch.Tensor,  # [S, K, D]: the sequences one after the other
    value: torch.Tensor,  # [S, K, D]
    query_start: torch.Tensor,  # [R + 1] int32
    kv_start: torch.Tensor,  # [R + 1] int32
    out: torch.Tensor,  # [T, H, D]
    scale: float,
) -> None:
    """Causal attention of packed sequences without pages."""
    starts, kv_starts = query_start.tolist(), kv_start.tolist()
    for index in range(len(starts) - 1):
        tokens = slice(starts[index], starts[index + 1])
        keys = slice(kv_starts[index], kv_starts[index + 1])
        if tokens.start < tokens.stop:
            out[tokens] = attend(query[tokens], key[keys], value[keys], scale).to(out.dtype)


def gather_kv(
    cache: torch.Tensor,  # [B, P, K, D]
    block_table: torch.Tensor,  # [R', max_blocks] int32
    kv_start: torch.Tensor,  # [R' + 1] int32: where each sequence goes
    out: torch.Tensor,  # [S, K, D]
) -> None:
    """Copy the pages of sequences to a place where they lie one after the other."""
    page = cache.shape[1]
    starts = kv_start.tolist()
    for index in range(len(starts) - 1):
        first, last = starts[index], starts[index + 1]
        num_blocks = -(-(last - first) // page)
        blocks = block_table[index, :num_blocks].long()
        out[first:last] = cache[blocks].flatten(0, 1)[: last - first]


def prefill_paged(
    query: torch.Tensor,  # [T', H, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    block_table: torch.Tensor,  # [R', max_blocks] int32
    query_start: torch.Tensor,  # [R' + 1] int32; may be on the CPU
    seq_lens: torch.Tensor,  # [R'] int32; may be on the CPU
    out: torch.Tensor,  # [T', H, D]
    scale: float,
    skip_query_len: int = 0,
    window: int | None = None,
) -> None:
    """Causal attention over pages, of requests with more than ``skip_query_len`` queries.

    The kernel knows no ``window``.
    """
    page = key_cache.shape[1]
    starts, lengths = query_start.tolist(), seq_lens.tolist()
    for index, length in enumerate(lengths):
        tokens = slice(starts[index], starts[index + 1])
        if tokens.stop - tokens.start <= skip_query_len:
            continue
        blocks = block_table[index, : -(-length // page)]
        key = take_blocks(key_cache, blocks).flatten(0, 1)[:length]
        value = take_blocks(value_cache, blocks).flatten(0, 1)[:length]
        out[tokens] = attend(query[tokens], key, value, scale, window).to(out.dtype)


def plan_decode(
    seq_lens: torch.Tensor,  # [R'] int32
    query_start: torch.Tensor,  # [R' + 1] int32
    max_query_len: int,
    block_n: int,
    num_parts: int,
) -> PlannedSplits:
    """Cut the keys of all requests with 1 to ``max_query_len`` queries into about equal items.

    As many requests as there are, and ``num_parts`` more, is room enough: an item is as long as
    the part that each of ``num_parts`` processors would get, except for the last of a request.
    """
    num_reqs, device = seq_lens.shape[0], seq_lens.device
    queries = query_start[1:] - query_start[:-1]
    served = (queries > 0) & (queries <= max_query_len)
    blocks = torch.where(served, (seq_lens + block_n - 1) // block_n, 0)
    each = ((blocks.sum() + num_parts - 1) // num_parts).clamp(min=1)
    counts = (blocks + each - 1) // each  # items of each request
    first = torch.zeros(num_reqs + 1, dtype=torch.int32, device=device)
    first[1:] = counts.cumsum(0)
    items = torch.arange(num_parts + num_reqs, dtype=torch.int32, device=device)
    owner = torch.searchsorted(first[1:], items, right=True, out_int32=True)
    used = items < first[-1]
    owner = torch.where(used, owner, 0)
    step = (blocks[owner] + counts[owner] - 1) // counts[owner].clamp(min=1) * block_n
    start = (items - first[owner]) * step
    stop = torch.minimum(start + step, seq_lens[owner])
    return PlannedSplits(
        torch.where(used, owner, -1).int(),
        torch.where(used, start, 0).int(),
        torch.where(used, stop, 0).int(),
        first,
    )


def decode_paged(
    query: torch.Tensor,  # [T', H, D]
    key_cache: torch.Tensor,  # [B, P, K, D]
    value_cache: torch.Tensor,  # [B, P, K, D]
    block_table: torch.Tensor,  # [R', max_blocks] int32
    query_start: torch.Tensor,  # [R' + 1] int32
    seq_lens: torch.Tensor,  # [R'] int32
    out: torch.Tensor,  # [T', H, D]
    partial_out: torch.Tensor,  # [N, Q, H, D] float32
    partial_lse: torch.Tensor,  # [N, Q, H] float32, logarithms to base 2
    scale: float,
    splits: Splits,
) -> None:
    """Partial attention of each item, for requests with 1 to Q queries.

    It leaves ``out`` to ``combine_splits``, for requests that are one item, too.
    """
    del out
    plan = item_tensors(splits, seq_lens)
    max_query_len = partial_out.shape[1]
    page, num_kv_heads = key_cache.shape[1:3]
    kind = wider(query.dtype)
    owner = plan.item_req.clamp(min=0)
    first, queries = query_start[owner], (query_start[1:] - query_start[:-1])[owner]
    length = seq_lens[owner]
    rows = torch.arange(max_query_len, device=query.device)
    tokens = (first[:, None] + rows).clamp(max=max(query.shape[0] - 1, 0))  # [N, Q]
    # Rows beyond a request's queries are another's, or a padded token's, which may be NaN.
    mine = (rows < queries[:, None])[:, :, None, None]
    picked = torch.where(mine, query[tokens].to(kind), 0.0)  # [N, Q, H, D]
    grouped = picked.view(*tokens.shape, num_kv_heads, -1, query.shape[2])
    blocks = block_table[owner]  # [N, max_blocks]
    shape = (len(blocks), -1, *key_cache.shape[2:])
    keys = take_blocks(key_cache, blocks.flatten()).to(kind).view(shape)  # [N, S, K, D]
    values = take_blocks(value_cache, blocks.flatten()).to(kind).view(shape)
    columns = torch.arange(blocks.shape[1] * page, device=query.device)
    inside = (columns >= plan.item_start[:, None]) & (columns < plan.item_stop[:, None])  # [N, S]
    position = (length - queries)[:, None] + rows  # [N, Q]
    seen = inside[:, None, :] & (columns <= position[:, :, None])  # [N, Q, S]
    scores = torch.einsum("nqkgd,nskd->nqkgs", grouped, keys) * scale
    scores = scores.masked_fill(~seen[:, :, None, None, :], float("-inf"))
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[..., None])
    values = torch.where(inside[:, :, None, None], values, 0.0)
    mixed = torch.einsum("nqkgs,nskd->nqkgd", weights, values)
    partial_out.copy_(mixed.flatten(2, 3))
    partial_lse.copy_(lse.flatten(2, 3) / _LN_2)


def combine_splits(
    partial_out: torch.Tensor,  # [N, Q, H, D] float32
    partial_lse: torch.Tensor,  # [N, Q, H] float32, logarithms to base 2
    query_start: torch.Tensor,  # [R' + 1] int32
    seq_lens: torch.Tensor,  # [R'] int32
    out: torch.Tensor,  # [T', H, D]
    splits: Splits,
) -> None:
    """Put the items of each request with 1 to Q queries together; leave all other rows alone."""
    plan = item_tensors(splits, seq_lens)
    max_query_len = partial_out.shape[1]
    num_reqs = seq_lens.shape[0]
    reqs = torch.arange(num_reqs, device=out.device)
    mine = plan.item_req[None, :] == reqs[:, None]  # [R', N]
    lse = partial_lse[None].masked_fill(~mine[:, :, None, None], float("-inf"))  # [R', N, Q, H]
    top = lse.amax(1, keepdim=True)
    weights = torch.exp2(lse - torch.where(top.isinf(), 0.0, top))
    weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    used = (plan.item_req >= 0)[:, None, None, None]
    bad = used & ~partial_out.isfinite()  # in a sum over all items it would get into all requests
    parts = torch.where(used & ~bad, partial_out, 0.0)
    merged = torch.einsum("rnqh,nqhd->rqhd", weights, parts)
    own = torch.einsum("rn,nqhd->rqhd", mine.to(parts.dtype), bad.to(parts.dtype))
    merged = torch.where(own > 0, torch.nan, merged)
    tokens = torch.arange(out.shape[0], device=out.device, dtype=query_start.dtype)
    owner = torch.searchsorted(query_start[1:], tokens, right=True).clamp(max=num_reqs - 1)
    queries = (query_start[1:] - query_start[:-1])[owner]
    served = (tokens < query_start[-1]) & (queries <= max_query_len)
    row = (tokens - query_start[owner]).clamp(min=0, max=max_query_len - 1)
    out.copy_(torch.where(served[:, None, None], merged[owner, row].to(out.dtype), out))
