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
from sample_engine.model.kernels.silu_and_mul import gated, silu_and_mul

__all__ = ["MOST_ROWS", "LinearConfig", "linear", "linear_gated", "linear_parts"]

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
    weight_ptr: tl.tensor,  # [N, K]; with GATED [2 * N, K]: gate and up
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
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
    LINE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    launch_early(OVERLAP)
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N  # of what is stored
    first_n = tl.program_id(0) * WIDTH
    part = tl.program_id(1)
    begin = part * per_split
    end = tl.minimum(begin + per_split, size_k)
    features = first_n + tl.arange(0, WIDTH)
    in_tile = tl.arange(0, BLOCK_N)
    wanted = first_n + in_tile % WIDTH
    if not EVEN_N:
        wanted = tl.minimum(wanted, size_n - 1)  # what comes of them is not stored
    if GATED:
        wanted += in_tile // WIDTH * size_n
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
    if GATED:
        gate, up = tl.split(acc.reshape(2, WIDTH, ROWS).permute(1, 2, 0))
        acc = gated(rounded(gate, out_ptr), rounded(up, out_ptr), out_ptr)
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
    num_tokens, size_n = x.shape[0], weight.shape[0]
    out = torch.empty((num_tokens, size_n), dtype=x.dtype, device=x.device)
    split, _ = _columns(weight, config)
    if split == 1:
        _multiply(x, weight, residual, out, config, overlap)
        return out
    parts = linear_parts(x, weight, config=config, overlap=overlap)
    added = out if residual is None else residual
    if num_tokens:
        _add_parts_kernel[(num_tokens, -(-size_n // _SUM_BLOCK))](
            parts,
            added,
            out,
            num_tokens,
            size_n,
            elements(added)[1],
            SPLIT=split,
            RESIDUAL=residual is not None,
            BLOCK=_SUM_BLOCK,
            OVERLAP=overlap,
            num_warps=4,
            launch_pdl=overlap,
        )
    return out


def linear_parts(
    x: torch.Tensor,  # [T, K], T up to MOST_ROWS
    weight: torch.Tensor,  # [N, K], contiguous
    *,
    config: LinearConfig = LinearConfig(),
    overlap: bool = False,
) -> torch.Tensor:  # [split, T, N] float32
    """``x @ weight.T`` in parts, to be added in their order and then rounded."""
    split, _ = _columns(weight, config)
    size = (split, x.shape[0], weight.shape[0])
    parts = torch.empty(size, dtype=torch.float32, device=x.device)
    _multiply(x, weight, None, parts, config, overlap)
    return parts


def linear_gated(
    x: torch.Tensor,  # [T, K], T up to MOST_ROWS
    weight: torch.Tensor,  # [2 * I, K], contiguous: gate and up
    *,
    config: LinearConfig = LinearConfig(),
    overlap: bool = False,
) -> torch.Tensor:  # [T, I]
    """``silu_and_mul(x @ weight.T)``."""
    if _columns(weight, config)[0] > 1:  # the parts of a gate have to be added before it is applied
        both = linear(x, weight, config=config, overlap=overlap)
        return silu_and_mul(both, overlap=overlap)
    out = torch.empty((x.shape[0], weight.shape[0] // 2), dtype=x.dtype, device=x.device)
    _multiply(x, weight, None, out, config, overlap)
    return out


def _columns(weight: torch.Tensor, config: LinearConfig) -> tuple[int, int]:
    """How many programs share the columns of a weight, and how many each of them has."""
    steps = -(-weight.shape[1] // config.block_k)
    each = -(-steps // config.split) * config.block_k
    return -(-weight.shape[1] // each), each


def _multiply(
    x: torch.Tensor,  # [T, K]
    weight: torch.Tensor,  # [N, K]
    residual: torch.Tensor | None,  # [T, N]
    out: torch.Tensor,  # [T, N], or parts [split, T, N], or gated [T, N / 2]
    config: LinearConfig,
    overlap: bool,
) -> None:
    num_tokens, x_stride = elements(x)
    size_n, size_k = out.shape[-1], weight.shape[1]
    width = config.block_n * size_n // weight.shape[0]
    split, per_split = _columns(weight, config)
    assert num_tokens <= MOST_ROWS, "all tokens have to fit into one tile"
    assert weight.is_contiguous(), "a weight is read as it lies"
    if not num_tokens:
        return
    _linear_kernel[(-(-size_n // width), split)](
        x,
        weight,
        x if residual is None else residual,
        out,
        num_tokens,
        size_n,
        size_k,
        x_stride,
        size_n if residual is None else elements(residual)[1],
        per_split,
        ROWS=MOST_ROWS,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        EVEN_N=size_n % width == 0,
        EVEN_K=size_k % config.block_k == 0,
        SPLIT=out.dim() == 3,
        RESIDUAL=residual is not None,
        GATED=size_n != weight.shape[0],
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        AHEAD=config.ahead,
        LINE=_LINE // x.element_size(),
        OVERLAP=overlap,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        launch_pdl=overlap,
    )
