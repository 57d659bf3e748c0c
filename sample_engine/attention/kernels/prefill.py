"""What prefill over contiguous and over paged memory share: tiles, their order, their ends.

A tile is BLOCK_M rows of one request. With ``PACK`` > 1 the query heads that share a KV head are
packed into it: row ``r`` is token ``r // PACK`` and head ``r % PACK``, so that a short chunk still
fills a tile and keys are read once for the group. The heavy tiles, those with most keys, come
first.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import triton.language as tl

from sample_engine.kernels.common import jit

__all__ = [
    "PrefillConfig",
    "check_rows",
    "load_queries",
    "locate",
    "no_sums",
    "prefill_grid",
    "store_rows",
]


@dataclasses.dataclass(frozen=True)
class PrefillConfig:
    """How a prefill kernel is built. ``tuning`` chooses one; a benchmark may try others.

    ``variant``: how keys and values come in. ``pointer``: by pointers and cp.async; ``descriptor``:
    by TMA (pages have to be a multiple of ``block_n``); ``hopper``: by TMA in a producer warp,
    written in Gluon (Hopper only, not in the interpreter).
    """

    block_m: int = 128
    block_n: int = 64
    num_warps: int = 8
    num_stages: int = 3
    variant: str = "pointer"
    pack_heads: bool = False
    tile_major: bool = False  # all heads of the heaviest tiles first; else one KV head at a time
    page_ahead: bool = False  # look up the pages of the next tile early
    maxnreg: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told."""
        found: dict[str, Any] = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        if self.maxnreg is not None:
            found["maxnreg"] = self.maxnreg
        return found


def prefill_grid(
    config: PrefillConfig, num_reqs: int, num_heads: int, num_kv_heads: int, max_query_len: int
) -> tuple[int, int, int]:
    """Room for all tiles of all requests; the host knows no more than the longest query."""
    pack = num_heads // num_kv_heads if config.pack_heads else 1
    tokens = config.block_m // pack
    tiles = -(-max_query_len // tokens)
    if config.tile_major:
        return num_heads // pack, num_reqs, tiles
    return tiles * (num_heads // num_kv_heads // pack), num_kv_heads, num_reqs


@jit
def locate(GROUP: tl.constexpr, PACK: tl.constexpr, TILE_MAJOR: tl.constexpr) -> Any:
    """Request, first query head and tile of this program."""
    SHARE: tl.constexpr = GROUP // PACK
    if TILE_MAJOR:
        head = tl.program_id(0) * PACK
        req = tl.program_id(1)
        tile = tl.num_programs(2) - 1 - tl.program_id(2)
    else:
        place = tl.program_id(0)
        head = tl.program_id(1) * GROUP + (place % SHARE) * PACK
        tile = tl.num_programs(0) // SHARE - 1 - place // SHARE
        req = tl.program_id(2)
    return req, head, tile


@jit
def load_queries(
    query_ptr: tl.tensor,  # [T', H, D]
    token: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    num_queries: tl.tensor,
    token_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PACK: tl.constexpr,
) -> Any:
    """The queries of a tile whose first row is token ``row`` of the request; zeros beyond it."""
    at = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PAD)
    rows = row + at // PACK
    ok = (at < BLOCK_M // PACK * PACK) & (rows < num_queries)
    place = (token + rows).to(tl.int64) * token_stride + (head + at % PACK) * HEAD_DIM
    mask = ok[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(query_ptr + place[:, None] + dims[None, :], mask=mask, other=0.0)


@jit
def no_sums(BLOCK_M: tl.constexpr, HEAD_PAD: tl.constexpr) -> Any:
    """The online softmax of no keys: weighted values, sum of weights, greatest score."""
    acc = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    return acc, total, peak


@jit
def store_rows(
    out_ptr: tl.tensor,  # [T', H, D]
    acc: tl.tensor,  # [BLOCK_M, HEAD_PAD]
    total: tl.tensor,  # [BLOCK_M]
    token: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    num_queries: tl.tensor,
    token_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PACK: tl.constexpr,
) -> None:
    """Write a tile's result, each row divided by the sum of its weights."""
    at = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_PAD)
    rows = row + at // PACK
    ok = (at < BLOCK_M // PACK * PACK) & (rows < num_queries)
    place = (token + rows).to(tl.int64) * token_stride + (head + at % PACK) * HEAD_DIM
    mask = ok[:, None] & (dims < HEAD_DIM)[None, :]
    result = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place[:, None] + dims[None, :], result, mask=mask)


def check_rows(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor [T, heads, D] whose heads do not lie side by side."""
    if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
        raise ValueError(
            f"{name} has the strides {tensor.stride()}: the last two dimensions have to be "
            "contiguous. Pass a contiguous tensor."
        )
