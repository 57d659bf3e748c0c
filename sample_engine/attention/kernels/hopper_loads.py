"""What the two loading warps of the Hopper prefill kernel do, in Gluon.

They ask for keys and for values by TMA, some blocks ahead of the warps that use them, and from the
last block of a tile to the first: only the last ones need a mask. A page is one copy for each line
of 128 bytes of a row, to the place in shared memory where a contiguous tile would have it.
"""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from sample_engine.attention.kernels.hopper_tiles import (
    MANY,
    blocks_of,
    end_tiles,
    gluon_jit,
    of_many,
    of_request,
    place_of,
    read,
    release,
    write,
)

__all__ = ["lead", "load_values"]


@gluon_jit
def _table_row(table_ptr: gl.tensor, req: gl.tensor, table_stride: gl.tensor) -> Any:
    """A request's row of the block table; without pages nobody reads it."""
    return table_ptr + req.to(gl.int64) * table_stride


@gluon_jit
def _load_blocks(
    of_tiles: gl.tensor,  # of keys or of values
    table_ptr: gl.tensor,  # [max_blocks]: this request's row
    first_key: gl.tensor,
    column: gl.tensor,
    num_keys: gl.tensor,
    num_blocks: gl.tensor,
    start: gl.tensor,
    stop: gl.tensor,
    before: gl.tensor,  # blocks of earlier tiles
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
) -> None:
    """Ask for some blocks of a tile, each once its place is free."""
    # A descriptor, the buffers block by block, the same memory by pages and lines, barriers.
    source, tiles, pieces, full, free = of_tiles
    LINES: gl.constexpr = DIM // LINE
    PIECE: gl.constexpr = min(PAGE, BLOCK_N) if PAGE else BLOCK_N
    COUNT: gl.constexpr = BLOCK_N // PIECE
    for index in range(start, stop):
        turn = before + index
        stage = turn % STAGES
        first = (num_blocks - 1 - index) * BLOCK_N
        blocks = gl.tuple([])
        if PAGE:
            for piece in gl.static_range(COUNT):
                at = first + piece * PIECE
                block = gl.load(table_ptr + at // PAGE, mask=at < num_keys, other=0)
                blocks = blocks + (block * PAGE + at % PAGE,)  # noqa: RUF005
        ready = full.index(stage)
        mbarrier.wait(free.index(stage), (turn // STAGES & 1) ^ 1)
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
def load_values(
    of_values: gl.tensor,
    slots: gl.tensor,
    table_ptr: gl.tensor,  # [R', max_blocks]
    table_stride: gl.tensor,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
) -> None:
    """One warp: the values of all tiles of this program."""
    before = 0
    turn = 0
    row, num_queries, num_keys = read(slots, turn)
    while row >= 0:
        head, _, origin = release(slots, turn)
        num_blocks, _ = blocks_of(row, num_queries, num_keys, BLOCK_N)
        table = _table_row(table_ptr, origin, table_stride)
        _load_blocks(
            of_values, table, origin, head // GROUP * DIM, num_keys, num_blocks, 0, num_blocks,
            before, STAGES, BLOCK_N, DIM, PAGE, LINE,
        )  # fmt: skip
        before += num_blocks
        turn += 1
        row, num_queries, num_keys = read(slots, turn)


@gluon_jit
def lead(
    of_queries: gl.tensor,
    of_keys: gl.tensor,
    slots: gl.tensor,
    of_batch: gl.tensor,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DIM: gl.constexpr,
    PAGE: gl.constexpr,
    LINE: gl.constexpr,
) -> None:
    """One warp: finds this program's tiles, tells them, and loads their queries and keys."""
    query, queries, query_full, query_free = of_queries
    starts_ptr, kv_ptr, table_ptr, table_stride, counter_ptr, num_reqs, skip_query_len = of_batch
    before = 0
    turn = 0
    req = 0
    passed = 0  # tiles of earlier requests
    number = gl.program_id(0)
    token, num_queries, tiles = of_request(starts_ptr, req, num_reqs, skip_query_len, HEADS)
    while req < num_reqs:
        if number >= passed + tiles:
            passed += tiles
            req += 1
            # Mostly requests that decode, which have no tile here.
            together = of_many(starts_ptr, req, num_reqs, skip_query_len, HEADS)
            while (req < num_reqs) & (number >= passed + together):
                passed += together
                req += MANY
                together = of_many(starts_ptr, req, num_reqs, skip_query_len, HEADS)
            token, num_queries, tiles = of_request(starts_ptr, req, num_reqs, skip_query_len, HEADS)
        else:
            row, head = place_of(number - passed, tiles, HEADS)
            if PAGE:
                origin = req
                num_keys = gl.load(kv_ptr + req)
            else:
                origin = gl.load(kv_ptr + req)
                num_keys = gl.load(kv_ptr + req + 1) - origin
            write(slots, turn, token, row, head, num_queries, num_keys, origin)
            number = gl.num_programs(0) + gl.atomic_add(counter_ptr, 1)
            num_blocks, _ = blocks_of(row, num_queries, num_keys, BLOCK_N)
            table = _table_row(table_ptr, origin, table_stride)
            column = head // GROUP * DIM
            # The first keys can be loaded before the last tile is done with its queries.
            _load_blocks(
                of_keys, table, origin, column, num_keys, num_blocks, 0, 1, before, STAGES,
                BLOCK_N, DIM, PAGE, LINE,
            )  # fmt: skip
            for part in gl.static_range(2):
                mbarrier.wait(query_free.index(part), (turn & 1) ^ 1)
                ready = query_full.index(part)
                mbarrier.expect(ready, 64 * DIM * 2)
                place = [token + row + part * 64, head * DIM]
                tma.async_copy_global_to_shared(query, place, ready, queries.index(part))
            _load_blocks(
                of_keys, table, origin, column, num_keys, num_blocks, 1, num_blocks, before, STAGES,
                BLOCK_N, DIM, PAGE, LINE,
            )  # fmt: skip
            before += num_blocks
            turn += 1
    end_tiles(slots, turn)
