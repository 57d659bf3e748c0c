"""Which tile of the Hopper prefill kernel is next, and how all warps of a program hear of it.

A tile is 128 queries of one request and one head. Tiles are numbered request by request, those with
most keys first. As many programs run as there are processors; each takes the tile of its own number
first and then, from a counter that all share, whichever nobody has taken. So no processor waits for
another that has longer tiles, and the next tile's keys are loaded while the last one ends.

The warp that loads keys is ahead of the others. It writes the tile into one of two slots of shared
memory, and a row of -1 behind the last one; the other warps read it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from sample_engine.kernels.common import varying

__all__ = [
    "FIELDS",
    "MANY",
    "SLOTS",
    "TILE_ROWS",
    "barriers",
    "blocks_of",
    "end_tiles",
    "gluon_jit",
    "of_many",
    "of_request",
    "place_of",
    "read",
    "release",
    "write",
]

TILE_ROWS = gl.constexpr(128)
MANY = gl.constexpr(32)  # requests that are looked at together
SLOTS = gl.constexpr(2)
FIELDS = gl.constexpr(6)  # of a slot, in this order
_TOKEN = gl.constexpr(0)  # the request's first one
_ROW = gl.constexpr(1)
_HEAD = gl.constexpr(2)
_NUM_QUERIES = gl.constexpr(3)
_NUM_KEYS = gl.constexpr(4)
_ORIGIN = gl.constexpr(5)  # where its keys are: its first key, or with pages its number


def gluon_jit(function: Callable[..., Any]) -> Any:
    """``gluon.jit``, with a type; built once for all batches, as ``kernels.common.jit`` says."""
    return gluon.jit(function, do_not_specialize=varying(function))


@gluon_jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr) -> Any:
    """So many barriers, each for so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(COUNT):
        mbarrier.init(made.index(index), count=ARRIVALS)
    return made


@gluon_jit
def of_request(
    starts_ptr: gl.tensor,
    req: gl.tensor,
    num_reqs: gl.tensor,
    skip_query_len: gl.tensor,
    HEADS: gl.constexpr,
) -> Any:
    """A request's first token, its queries, and its tiles of all heads; none beyond the last."""
    there = req < num_reqs
    token = gl.load(starts_ptr + req, mask=there, other=0)
    num_queries = gl.load(starts_ptr + req + 1, mask=there, other=0) - token
    tiles = gl.where(num_queries > skip_query_len, (num_queries + TILE_ROWS - 1) // TILE_ROWS, 0)
    return token, num_queries, tiles * HEADS


@gluon_jit
def of_many(
    starts_ptr: gl.tensor,
    req: gl.tensor,
    num_reqs: gl.tensor,
    skip_query_len: gl.tensor,
    HEADS: gl.constexpr,
) -> Any:
    """The tiles of ``MANY`` requests from this one on, together."""
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    at = req + gl.arange(0, MANY, layout=EACH)
    _, _, tiles = of_request(starts_ptr, at, num_reqs, skip_query_len, HEADS)
    return gl.sum(tiles, 0)


@gluon_jit
def place_of(number: gl.tensor, tiles: gl.tensor, HEADS: gl.constexpr) -> Any:
    """Row and head of a request's tile: all heads of the last rows first."""
    return (tiles // HEADS - 1 - number // HEADS) * TILE_ROWS, number % HEADS


@gluon_jit
def blocks_of(
    row: gl.tensor, num_queries: gl.tensor, num_keys: gl.tensor, BLOCK_N: gl.constexpr
) -> Any:
    """How many blocks of keys a tile sees; so many of them, the last ones, need a mask."""
    seen = num_keys - num_queries + row  # the last position of the first row
    num_blocks = (gl.minimum(seen + TILE_ROWS, num_keys) + BLOCK_N - 1) // BLOCK_N
    return num_blocks, gl.maximum(num_blocks - (seen + 1) // BLOCK_N, 1)


@gluon_jit
def _put(fields: gl.tensor, slot: gl.tensor, FIELD: gl.constexpr, number: gl.tensor) -> None:
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    fields.index(slot * FIELDS + FIELD).store(gl.full([1], number, gl.int32, ONE))


@gluon_jit
def _get(fields: gl.tensor, slot: gl.tensor, FIELD: gl.constexpr) -> Any:
    """A number of a slot."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(fields.index(slot * FIELDS + FIELD).load(ONE), 0)


@gluon_jit
def write(
    slots: gl.tensor,  # their fields, and barriers: written, and read by all
    turn: gl.tensor,
    token: gl.tensor,
    row: gl.tensor,
    head: gl.tensor,
    num_queries: gl.tensor,
    num_keys: gl.tensor,
    origin: gl.tensor,
) -> None:
    """Tell the others a tile, once all of them have read the one that its slot held."""
    fields, written, free = slots
    slot = turn % SLOTS
    mbarrier.wait(free.index(slot), (turn // SLOTS & 1) ^ 1)
    _put(fields, slot, _TOKEN, token)
    _put(fields, slot, _ROW, row)
    _put(fields, slot, _HEAD, head)
    _put(fields, slot, _NUM_QUERIES, num_queries)
    _put(fields, slot, _NUM_KEYS, num_keys)
    _put(fields, slot, _ORIGIN, origin)
    mbarrier.arrive(written.index(slot), count=1)


@gluon_jit
def end_tiles(slots: gl.tensor, turn: gl.tensor) -> None:
    """Tell the others that there are no more tiles."""
    write(slots, turn, 0, -1, 0, 0, 0, 0)


@gluon_jit
def read(slots: gl.tensor, turn: gl.tensor) -> Any:
    """Wait for a tile: its row, -1 at the end, its request's queries and keys."""
    fields, written, _ = slots
    slot = turn % SLOTS
    mbarrier.wait(written.index(slot), turn // SLOTS & 1)
    row, num_queries = _get(fields, slot, _ROW), _get(fields, slot, _NUM_QUERIES)
    return row, num_queries, _get(fields, slot, _NUM_KEYS)


@gluon_jit
def release(slots: gl.tensor, turn: gl.tensor) -> Any:
    """The rest of a tile, head, first token and origin; its slot may then be written again."""
    fields, _, free = slots
    slot = turn % SLOTS
    head, token = _get(fields, slot, _HEAD), _get(fields, slot, _TOKEN)
    origin = _get(fields, slot, _ORIGIN)
    mbarrier.arrive(free.index(slot), count=1)
    return head, token, origin
