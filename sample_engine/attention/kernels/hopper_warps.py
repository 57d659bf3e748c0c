"""What the two computing groups of warps of the Hopper prefill kernel do, in Gluon.

Each takes 64 rows of a tile. It starts the product of its queries with the next keys, then that of
the last weights with their values, and works on the softmax of the new scores meanwhile: so tensor
cores and the other units work at the same time, within a group and between the two.

Triton's interpreter does not run Gluon, and Gluon's interface still moves: this is written for
Triton 3.6.
"""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sample_engine.attention.kernels.hopper_tiles import blocks_of, gluon_jit, read, release

__all__ = ["consume"]


@gluon_jit
def _of_each_thread(
    scores: gl.tensor,  # [64, BLOCK_N]
    BLOCK_N: gl.constexpr,
) -> Any:
    """The same, so that what one thread holds of a row is in one place of the last dimension.

    Reduced over the middle it takes no exchange between threads, and two chains of half the length.
    """
    return scores.reshape([64, BLOCK_N // 8, 8])


@gluon_jit
def _weigh(
    scores: gl.tensor,  # [64, BLOCK_N]
    total: gl.tensor,  # [64, 8]: each thread's part of the sum of weights
    peak: gl.tensor,  # [64]
    limit: gl.tensor,  # [64]: the last position that each row sees
    first: gl.tensor,
    scale: gl.tensor,
    MASKED: gl.constexpr,
    BLOCK_N: gl.constexpr,
    LAYOUT: gl.constexpr,
) -> Any:
    """One step of the online softmax, without the accumulator's part."""
    ROW: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    if MASKED:
        columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
        seen = columns[None, :] <= (limit - first)[:, None]
        scores = gl.where(seen, scores, float("-inf"))
    highest = gl.convert_layout(gl.max(gl.max(_of_each_thread(scores, BLOCK_N), 1), 1), ROW)
    new_peak = gl.maximum(peak, highest * scale)
    base = new_peak
    if MASKED:  # the last keys come first: a row may have seen none so far
        base = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(scores * scale - base[:, None])
    shrink = gl.exp2(peak - base)
    part = gl.sum(_of_each_thread(weights, BLOCK_N), 1)
    total = total * gl.convert_layout(shrink, gl.SliceLayout(1, part.type.layout))[:, None] + part
    return weights, total, new_peak, shrink


@gluon_jit
def _step(
    index: gl.tensor,
    num_blocks: gl.tensor,
    before: gl.tensor,  # blocks of earlier tiles
    first: gl.tensor,
    weights: gl.tensor,  # [64, BLOCK_N]: of the block before
    acc: gl.tensor,  # [64, HEAD_DIM]
    total: gl.tensor,
    peak: gl.tensor,
    query: gl.tensor,
    buffers: gl.tensor,
    barriers: gl.tensor,
    limit: gl.tensor,
    scale: gl.tensor,
    MASKED: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DTYPE: gl.constexpr,
    SCORES: gl.constexpr,
    LEFT: gl.constexpr,
) -> Any:
    """The scores of this block, whose keys are there, and the weighted values of the one before."""
    keys, values = buffers
    key_full, key_free, value_full, value_free = barriers
    turn = before + index
    stage = turn % STAGES
    zero = gl.zeros([64, BLOCK_N], gl.float32, SCORES)
    tile = keys.index(stage).permute((1, 0))
    scores = warpgroup_mma(query, tile, zero, use_acc=False, is_async=True)
    stage_before = (turn - 1) % STAGES
    mbarrier.wait(value_full.index(stage_before), (turn - 1) // STAGES & 1)
    left = gl.convert_layout(weights.to(DTYPE), LEFT)
    acc = warpgroup_mma(left, values.index(stage_before), acc, is_async=True)
    scores = warpgroup_mma_wait(1, deps=(scores,))
    mbarrier.arrive(key_free.index(stage), count=1)
    weights, total, peak, shrink = _weigh(
        scores, total, peak, limit, first, scale, MASKED, BLOCK_N, SCORES
    )
    # The next keys are waited for here and not where they are used: the compiler moves the wait for
    # the products up to the last branch, and without this one it would be before the softmax.
    after = turn + 1
    mbarrier.wait(key_full.index(after % STAGES), after // STAGES & 1, pred=index + 1 < num_blocks)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(value_free.index(stage_before), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    return weights, acc, total, peak


@gluon_jit
def _clear_end(tile: gl.tensor, num_rows: gl.tensor, BLOCK_N: gl.constexpr) -> None:
    """Write zeros behind the last key: what lies there may be NaN, which no weight of 0 removes."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, LAYOUT))
    data = tile.load(LAYOUT)
    tile.store(gl.where((rows < num_rows)[:, None], data, gl.zeros_like(data)))
    fence_async_shared()


@gluon_jit
def _store(
    result: gl.tensor,  # [64, DIM]
    out_ptr: gl.tensor,
    out_stride: gl.tensor,
    token: gl.tensor,
    row: gl.tensor,
    head: gl.tensor,
    num_queries: gl.tensor,
    DIM: gl.constexpr,
) -> None:
    """Write the rows that are queries, 16 bytes at a time."""
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    result = gl.convert_layout(result, STORE)
    rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, STORE))
    dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, STORE))
    place = (token + rows).to(gl.int64) * out_stride + head * DIM
    gl.store(out_ptr + place[:, None] + dims[None, :], result, mask=(rows < num_queries)[:, None])


@gluon_jit
def consume(
    of_rows: gl.tensor,  # what both groups get
    slots: gl.tensor,
    GROUP_OF_WARPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
) -> None:
    """One group of warps: 64 rows of each tile, all keys that they see."""
    queries, query_full, query_free, buffers, barriers, out_ptr, out_stride, scale = of_rows
    keys, values = buffers
    key_full, key_free, value_full, value_free = barriers
    DTYPE: gl.constexpr = keys.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DIM, 16]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2)
    query = queries.index(GROUP_OF_WARPS)
    before = 0
    turn = 0
    row, num_queries, num_keys = read(slots, turn)
    while row >= 0:
        num_blocks, num_masked = blocks_of(row, num_queries, num_keys, BLOCK_N)
        row += GROUP_OF_WARPS * 64
        limit = num_keys - num_queries + row + gl.arange(0, 64, layout=ROW)
        stage = before % STAGES
        mbarrier.wait(query_full.index(GROUP_OF_WARPS), turn & 1)
        mbarrier.wait(key_full.index(stage), before // STAGES & 1)
        zero = gl.zeros([64, BLOCK_N], gl.float32, SCORES)
        scores = warpgroup_mma(query, keys.index(stage).permute((1, 0)), zero, use_acc=False)
        mbarrier.arrive(key_free.index(stage), count=1)
        total = gl.sum(_of_each_thread(gl.zeros_like(scores), BLOCK_N), 1)
        peak = gl.full([64], float("-inf"), gl.float32, ROW)
        first = (num_blocks - 1) * BLOCK_N
        weights, total, peak, _ = _weigh(
            scores, total, peak, limit, first, scale, True, BLOCK_N, SCORES
        )
        if num_keys - first < BLOCK_N:
            mbarrier.wait(value_full.index(stage), before // STAGES & 1)
            _clear_end(values.index(stage), num_keys - first, BLOCK_N)
        acc = gl.zeros([64, DIM], gl.float32, RESULT)
        after = before + 1
        mbarrier.wait(key_full.index(after % STAGES), after // STAGES & 1, pred=num_blocks > 1)
        for index in range(1, num_masked):
            weights, acc, total, peak = _step(
                index, num_blocks, before, (num_blocks - 1 - index) * BLOCK_N, weights, acc, total,
                peak, query, buffers, barriers, limit, scale, True, STAGES, BLOCK_N, DTYPE, SCORES,
                LEFT,
            )  # fmt: skip
        for index in range(num_masked, num_blocks):
            weights, acc, total, peak = _step(
                index, num_blocks, before, 0, weights, acc, total, peak, query, buffers, barriers,
                limit, scale, False, STAGES, BLOCK_N, DTYPE, SCORES, LEFT,
            )  # fmt: skip
        mbarrier.arrive(query_free.index(GROUP_OF_WARPS), count=1)
        before += num_blocks
        last = (before - 1) % STAGES
        mbarrier.wait(value_full.index(last), (before - 1) // STAGES & 1)
        left = gl.convert_layout(weights.to(DTYPE), LEFT)
        acc = warpgroup_mma(left, values.index(last), acc)
        mbarrier.arrive(value_free.index(last), count=1)
        acc = acc / gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, RESULT))[:, None]
        head, token, _ = release(slots, turn)
        _store(acc.to(DTYPE), out_ptr, out_stride, token, row, head, num_queries, DIM)
        turn += 1
        row, num_queries, num_keys = read(slots, turn)
