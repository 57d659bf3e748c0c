"""The linear layer of few tokens: it streams the weight once, as fast as memory gives it.

A program takes some rows of the weight and goes through all of their columns, many loads ahead. The
tokens are padded to one tile, so that what a token gets does not depend on how many there are. With
``split`` several programs share the columns; their parts are added in a fixed order.

Which configuration is fast is in ``tuning``.
"""

from __future__ import annotations

import dataclasses

import torch
import triton.language as tl

from sample_engine.kernels.common import jit
from sample_engine.kernels.overlap import launch_early, wait_for_inputs
from sample_engine.model.kernels.common import elements, prefetch, rounded

__all__ = ["MOST_ROWS", "LinearConfig", "linear"]

MOST_ROWS = 16  # tokens; with more of them a matrix product is better off in cuBLAS
_LINE = 128  # bytes that are fetched at a time
_SUM_BLOCK = 1024


@dataclasses.dataclass(frozen=True)
class LinearConfig:
    """How the kernel is built.

    ``split`` programs share a row of the weight. ``ahead`` columns, a power of two,
    are fetched while the kernel before still runs.
    """

    block_n: int = 32
    block_k: int = 256
    num_warps: int = 4
    num_stages: int = 4
    split: int = 1
    ahead: int = 512


@jit
def _linear_kernel(
    x_ptr: tl.tensor,  # [T, K]
    weight_ptr: tl.tensor,  # [N, K]
    residual_ptr: tl.tensor,  # [T, N]
    out_ptr: tl.tensor,  # [T, N], or with SPLIT [split, T, N] float32
    num_tokens: tl.tensor,
    size_n: tl.tensor,
    size_k: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    per_split: tl.tensor,  # columns of a split, a multiple of BLOCK_K
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLIT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
    LINE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    first_n = tl.program_id(0) * BLOCK_N
    part = tl.program_id(1)
    begin = part * per_split
    end = tl.minimum(begin + per_split, size_k)
    features = first_n + tl.arange(0, BLOCK_N)
    wanted = features
    if not EVEN_N:
        wanted = tl.minimum(features, size_n - 1)  # what comes of them is not stored
    lines = weight_ptr + wanted.to(tl.int64)[:, None] * size_k
    if OVERLAP and AHEAD > 0:
        at = tl.minimum(begin + tl.arange(0, AHEAD // LINE) * LINE, size_k - 1)
        prefetch(lines + at[None, :])
    wait_for_inputs(OVERLAP)
    tokens = tl.arange(0, ROWS)
    given = tokens < num_tokens
    columns = tl.arange(0, BLOCK_K)
    x_at = x_ptr + tokens[None, :] * x_stride + columns[:, None]
    acc = tl.zeros([BLOCK_N, ROWS], tl.float32)
    for start in tl.range(begin, end, BLOCK_K):
        if EVEN_K:
            weight = tl.load(lines + (start + columns)[None, :], eviction_policy="evict_first")
        else:
            inside = (start + columns)[None, :] < end
            weight = tl.load(
                lines + (start + columns)[None, :],
                mask=inside,
                other=0.0,
                eviction_policy="evict_first",
            )
        if EVEN_K:
            x = tl.load(x_at + start, mask=given[None, :], other=0.0)
        else:
            ok = given[None, :] & ((start + columns)[:, None] < end)
            x = tl.load(x_at + start, mask=ok, other=0.0)
        acc = tl.dot(weight, x, acc, input_precision=PRECISION)
    ok = given[None, :] & (features < size_n)[:, None]
    rows = tokens[None, :].to(tl.int64)
    if SPLIT:
        place = (part * num_tokens + rows) * size_n + features[:, None]
        tl.store(out_ptr + place, acc, mask=ok)
    else:
        if RESIDUAL:
            from_ptr = residual_ptr + rows * residual_stride + features[:, None]
            acc = rounded(acc, out_ptr) + tl.load(from_ptr, mask=ok, other=0.0).to(tl.float32)
        place = rows * size_n + features[:, None]
        tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=ok)


@jit
def _add_parts_kernel(
    part_ptr: tl.tensor,  # [split, T, N] float32
    residual_ptr: tl.tensor,  # [T, N]
    out_ptr: tl.tensor,  # [T, N]
    num_tokens: tl.tensor,
    size_n: tl.tensor,
    residual_stride: tl.tensor,
    SPLIT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = at < size_n
    wait_for_inputs(OVERLAP)
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(part_ptr + (part * num_tokens + token) * size_n + at, mask=ok, other=0.0)
    if RESIDUAL:
        residual = tl.load(residual_ptr + token * residual_stride + at, mask=ok, other=0.0)
        total = rounded(total, out_ptr) + residual.to(tl.float32)
    tl.store(out_ptr + token * size_n + at, total.to(out_ptr.dtype.element_ty), mask=ok)


def linear(
    x: torch.Tensor,  # [T, K], T up to MOST_ROWS
    weight: torch.Tensor,  # [N, K], contiguous
    residual: torch.Tensor | None = None,  # [T, N]
    *,
    config: LinearConfig = LinearConfig(),
    overlap: bool = False,
) -> torch.Tensor:  # [T, N]
    """``x @ weight.T``, plus ``residual``."""
    num_tokens, x_stride = elements(x)
    size_n, size_k = weight.shape
    out = torch.empty((num_tokens, size_n), dtype=x.dtype, device=x.device)
    assert num_tokens <= MOST_ROWS, "all tokens have to fit into one tile"
    assert weight.is_contiguous(), "a weight is read as it lies"
    if not num_tokens:
        return out
    steps = -(-size_k // config.block_k)
    per_split = -(-steps // config.split) * config.block_k
    split = -(-size_k // per_split)
    parts = out
    if split > 1:
        parts = torch.empty((split, num_tokens, size_n), dtype=torch.float32, device=x.device)
    added = out if residual is None else residual
    added_stride = elements(added)[1]
    line = _LINE // x.element_size()
    _linear_kernel[(-(-size_n // config.block_n), split)](
        x,
        weight,
        added,
        parts,
        num_tokens,
        size_n,
        size_k,
        x_stride,
        added_stride,
        per_split,
        ROWS=MOST_ROWS,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        EVEN_N=size_n % config.block_n == 0,
        EVEN_K=size_k % config.block_k == 0,
        SPLIT=split > 1,
        RESIDUAL=residual is not None and split == 1,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        AHEAD=config.ahead,
        LINE=line,
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        launch_pdl=overlap,
    )
    if split > 1:
        _add_parts_kernel[(num_tokens, -(-size_n // _SUM_BLOCK))](
            parts,
            added,
            out,
            num_tokens,
            size_n,
            added_stride,
            SPLIT=split,
            RESIDUAL=residual is not None,
            BLOCK=_SUM_BLOCK,
            OVERLAP=overlap,
            num_warps=4,
            launch_pdl=overlap,
        )
    return out
