"""What the warps of the Hopper prefill kernel do, in Gluon.

Two or three groups of four warps take 64 rows each; two more warps load keys and values by TMA,
some blocks ahead. A group starts the product of its queries with the next keys before it works on
the softmax of the last ones, so that tensor cores and the other units work at the same time, within
a group and between them. Keys are taken from the last to the first: only the first blocks need a
mask. A page is one TMA copy for each line of 128 bytes of a row, to the place in shared memory
where a contiguous tile would have it.

Triton's interpreter does not run Gluon, and Gluon's interface still moves: this is written for
Triton 3.6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = ["consume", "gluon_jit", "produce", "produce_keys"]


def gluon_jit(function: Callable[..., Any]) -> Any:
    """``gluon.jit``, with a type."""
    return gluon.jit(function)


@gluon_jit
def _weigh(
    scores: gl.tensor,  # [64, BLOCK_N]
    total: gl.tensor,  # [64]
    peak: gl.tensor,  # [64]
    limit: gl.tensor,  # [64]: the last position that each row sees
    first: gl.tensor,
    scale: gl.tensor,
    MASKED: gl.constexpr,
    BLOCK_N: gl.constexpr,
    LAYOUT: gl.constexpr,
) -> Any:
    """One step of the online softmax, without the accumulator's part."""
    if MASKED:
        columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
        seen = columns[None, :] <= (limit - first)[:, None]
        scores = gl.where(seen, scores, float("-inf"))
    new_peak = gl.maximum(peak, gl.max(scores, 1) * scale)
    base = new_peak
    if MASKED:  # the last keys come first: a row may have seen none so far
        base = gl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = gl.exp2(scores * scale - base[:, None])
    shrink = gl.exp2(peak - base)
    total = total * shrink + gl.sum(weights, 1)
    return weights, total, new_peak, shrink


@gluon_jit
def _step(
    index: gl.tensor,
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
    """The scores of this block, and meanwhile the weighted values of the one before."""
    keys, values = buffers
    key_full, key_free, value_full, value_free = barriers
    stage = index % STAGES
    mbarrier.wait(key_full.index(stage), index // STAGES & 1)
    zero = gl.zeros([64, BLOCK_N], gl.float32, SCORES)
    tile = keys.index(stage).permute((1, 0))
    scores = warpgroup_mma(query, tile, zero, use_acc=False, is_async=True)
    before = index - 1
    stage_before = before % STAGES
    mbarrier.wait(value_full.index(stage_before), before // STAGES & 1)
    left = gl.convert_layout(weights.to(DTYPE), LEFT)
    acc = warpgroup_mma(left, values.index(stage_before), acc, is_async=True)
    scores = warpgroup_mma_wait(1, deps=(scores,))
    mbarrier.arrive(key_free.index(stage), count=1)
    weights, total, peak, shrink = _weigh(
        scores, total, peak, limit, first, scale, MASKED, BLOCK_N, SCORES
    )
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
    of_rows: gl.tensor,  # what all groups get
    GROUP_OF_WARPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
) -> None:
    """One group of warps: 64 rows of the tile, all keys that they see."""
    queries, query_full, buffers, barriers, tile, out_ptr, out_stride, scale = of_rows
    token, row, head, num_queries, num_keys, num_blocks, num_masked = tile
    keys, values = buffers
    key_full, key_free, value_full, _ = barriers
    DTYPE: gl.constexpr = keys.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    RESULT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DIM, 16]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2)
    row += GROUP_OF_WARPS * 64
    limit = num_keys - num_queries + row + gl.arange(0, 64, layout=ROW)
    query = queries.index(GROUP_OF_WARPS)
    mbarrier.wait(query_full, 0)
    mbarrier.wait(key_full.index(0), 0)
    zero = gl.zeros([64, BLOCK_N], gl.float32, SCORES)
    scores = warpgroup_mma(query, keys.index(0).permute((1, 0)), zero, use_acc=False)
    mbarrier.arrive(key_free.index(0), count=1)
    total, peak = gl.zeros([64], gl.float32, ROW), gl.full([64], float("-inf"), gl.float32, ROW)
    first = (num_blocks - 1) * BLOCK_N
    weights, total, peak, _ = _weigh(
        scores, total, peak, limit, first, scale, True, BLOCK_N, SCORES
    )
    if num_keys - first < BLOCK_N:
        mbarrier.wait(value_full.index(0), 0)
        _clear_end(values.index(0), num_keys - first, BLOCK_N)
    acc = gl.zeros([64, DIM], gl.float32, RESULT)
    for index in range(1, num_masked):
        weights, acc, total, peak = _step(
            index, (num_blocks - 1 - index) * BLOCK_N, weights, acc, total, peak, query, buffers,
            barriers, limit, scale, True, STAGES, BLOCK_N, DTYPE, SCORES, LEFT,
        )  # fmt: skip
    for index in range(num_masked, num_blocks):
        weights, acc, total, peak = _step(
            index, 0, weights, acc, total, peak, query, buffers, barriers, limit, scale,
            False, STAGES, BLOCK_N, DTYPE, SCORES, LEFT,
        )  # fmt: skip
    last = (num_blocks - 1) % STAGES
    mbarrier.wait(value_full.index(last), (num_blocks - 1) // STAGES & 1)
    left = gl.convert_layout(weights.to(DTYPE), LEFT)
    acc = warpgroup_mma(left, values.index(last), acc)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, RESULT))[:, None]
    _store(acc.to(DTYPE), out_ptr, out_stride, token, row, head, num_queries, DIM)


@gluon_jit
def produce(
    of_tiles: gl.tensor,  # of keys or of values
    where: gl.tensor,  # this request's
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
) -> None:
    """One warp: asks for tiles of keys or values, from the last to the first."""
    # A descriptor, the buffers tile by tile, the same memory by pages and lines, barriers.
    source, tiles, pieces, full, free = of_tiles
    table_ptr, first_key, column, num_keys, num_blocks = where
    LINES: gl.constexpr = DIM // LINE
    PIECE: gl.constexpr = min(PAGE, BLOCK_N) if PAGE else BLOCK_N
    COUNT: gl.constexpr = BLOCK_N // PIECE
    for index in range(num_blocks):
        stage = index % STAGES
        first = (num_blocks - 1 - index) * BLOCK_N
        blocks = gl.tuple([])
        if PAGE:
            for piece in gl.static_range(COUNT):
                at = first + piece * PIECE
                block = gl.load(table_ptr + at // PAGE, mask=at < num_keys, other=0)
                blocks = blocks + (block * PAGE + at % PAGE,)  # noqa: RUF005
        ready = full.index(stage)
        mbarrier.wait(free.index(stage), (index // STAGES & 1) ^ 1)
        mbarrier.expect(ready, BLOCK_N * DIM * 2)
        if PAGE:
            for piece in gl.static_range(COUNT):
                for line in gl.static_range(LINES):
                    place = pieces.index((stage * LINES + line) * COUNT + piece)
                    at_once = [blocks[piece], column + line * LINE]
                    tma.async_copy_global_to_shared(source, at_once, ready, place)
        else:
            at_once = [first_key + first, column]
            tma.async_copy_global_to_shared(source, at_once, ready, tiles.index(stage))


@gluon_jit
def produce_keys(
    of_queries: gl.tensor,
    of_tiles: gl.tensor,
    where: gl.tensor,
    WARP_GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
) -> None:
    """The queries, once, and then what ``produce`` does."""
    query, queries, query_full, token, query_column = of_queries
    mbarrier.expect(query_full, WARP_GROUPS * 64 * DIM * 2)
    for part in gl.static_range(WARP_GROUPS):
        place = [token + part * 64, query_column]
        tma.async_copy_global_to_shared(query, place, query_full, queries.index(part))
    produce(of_tiles, where, STAGES, BLOCK_N, DIM, PAGE, LINE)
