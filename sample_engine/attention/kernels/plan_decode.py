"""The kernel that plans a split decode on the device: who reads which keys.

It reads lengths where they are, so that a plan is right for the lengths of the moment: the host
waits for nothing, and a graph that captured it plans anew at each replay.
"""

from __future__ import annotations

import torch
import triton.language as tl

from sample_engine.attention.kernels.splits import PlannedSplits
from sample_engine.kernels.common import jit, next_power_of_2

__all__ = ["plan_decode"]


@jit
def _plan_decode_kernel(
    seq_len_ptr: tl.tensor,  # [R'] int32
    query_start_ptr: tl.tensor,  # [R' + 1] int32
    item_req_ptr: tl.tensor,  # [N] int32
    item_start_ptr: tl.tensor,  # [N] int32
    item_stop_ptr: tl.tensor,  # [N] int32
    first_item_ptr: tl.tensor,  # [R' + 1] int32
    num_reqs: tl.tensor,
    num_parts: tl.tensor,
    max_query_len: tl.tensor,
    BLOCK_N: tl.constexpr,
    REQS: tl.constexpr,
    ITEMS: tl.constexpr,
) -> None:
    reqs = tl.arange(0, REQS)
    ok = reqs < num_reqs
    lengths = tl.load(seq_len_ptr + reqs, mask=ok, other=0)
    starts = tl.load(query_start_ptr + reqs, mask=ok, other=0)
    queries = tl.load(query_start_ptr + reqs + 1, mask=ok, other=0) - starts
    served = (queries > 0) & (queries <= max_query_len)
    blocks = tl.where(served, (lengths + BLOCK_N - 1) // BLOCK_N, 0)
    each = tl.maximum((tl.sum(blocks, 0) + num_parts - 1) // num_parts, 1)
    counts = (blocks + each - 1) // each  # items of each request
    last = tl.cumsum(counts, 0)
    tl.store(first_item_ptr + reqs + 1, last, mask=ok)
    tl.store(first_item_ptr, 0)
    step = (blocks + counts - 1) // tl.maximum(counts, 1) * BLOCK_N
    most = tl.max(counts, 0)
    for begin in range(0, most, ITEMS):
        index = begin + tl.arange(0, ITEMS)[None, :]
        mine = index < counts[:, None]
        place = (last - counts)[:, None] + index
        start = index * step[:, None]
        stop = tl.minimum(start + step[:, None], lengths[:, None])
        tl.store(item_req_ptr + place, reqs[:, None] + index * 0, mask=mine)
        tl.store(item_start_ptr + place, start, mask=mine)
        tl.store(item_stop_ptr + place, stop, mask=mine)
    used = tl.sum(counts, 0)
    for begin in range(used, num_parts + num_reqs, ITEMS):
        rest = begin + tl.arange(0, ITEMS)
        free = rest < num_parts + num_reqs
        tl.store(item_req_ptr + rest, -1, mask=free)
        tl.store(item_start_ptr + rest, 0, mask=free)
        tl.store(item_stop_ptr + rest, 0, mask=free)


def plan_decode(
    seq_lens: torch.Tensor,  # [R'] int32
    query_start: torch.Tensor,  # [R' + 1] int32
    max_query_len: int,
    block_n: int,
    num_parts: int,
) -> PlannedSplits:
    """Cut the keys of all requests with 1 to ``max_query_len`` queries into about equal items."""
    num_reqs = seq_lens.shape[0]
    capacity = num_parts + num_reqs
    memory = torch.empty(3 * capacity + num_reqs + 1, dtype=torch.int32, device=seq_lens.device)
    plan = PlannedSplits(*memory.split([capacity, capacity, capacity, num_reqs + 1]))
    _plan_decode_kernel[(1,)](
        seq_lens,
        query_start,
        plan.item_req,
        plan.item_start,
        plan.item_stop,
        plan.first_item,
        num_reqs,
        num_parts,
        max_query_len,
        BLOCK_N=block_n,
        REQS=next_power_of_2(num_reqs),
        ITEMS=16,
        num_warps=4,
    )
    return plan
