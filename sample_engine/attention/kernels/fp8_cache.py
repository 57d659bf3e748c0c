"""How keys and values lie in an FP8 cache, what they become there, and how they are read, in torch.

A row, the D numbers of a token and a KV head, is divided by a power of two of its own and rounded
to FP8 (e4m3: a sign, 4 bits of exponent, 3 of mantissa, up to 448). The power, the row's scale, is
the least one that leaves nothing above 448. So it follows from the row alone: what a block holds
depends on no other text and on no calibration, and may be shared with other engines. A division by
a power of two is exact; what is lost is lost by rounding, and of a number ``x`` no more than::

    max(|x| * 2**-4, scale * 2**-10)       where  scale < max(|row|) / 223

The cache of a layer is ``B`` blocks of bytes. A block holds ``P * K * D`` codes, then a byte for
the scale of each of its ``P * K`` rows: the power's exponent plus 127. Kernels get the codes as
[B, P, K, D] uint8 and find the scales behind them. The byte 255 says that the row had a NaN or an
infinity: it is read as a row of NaN.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = [
    "allocate",
    "blocks_of",
    "bytes_of_block",
    "dequantize",
    "exponents_of",
    "is_fp8",
    "quantize",
    "stored_as",
    "take_blocks",
]

_FP8 = torch.float8_e4m3fn
_BIAS = 127  # of a byte that is an exponent, and of float32's own exponents
_NOT_FINITE = 255
_INFINITY = 0x7F800000  # the bits of float32
_MANTISSA = 0x7FFFFF
_LARGEST_MANTISSA = 0x600000  # of 448, which is 1.75 * 2**8
_LARGEST_EXPONENT = 8


def bytes_of_block(page: int, num_kv_heads: int, head_dim: int) -> int:
    """What a block of keys, or of values, takes in one layer."""
    return page * num_kv_heads * (head_dim + 1)


def allocate(
    num_blocks: int, page: int, num_kv_heads: int, head_dim: int, device: torch.device
) -> Tensor:  # [B, P, K, D] uint8
    """A cache of zeros; what is returned are its codes."""
    size = (num_blocks, bytes_of_block(page, num_kv_heads, head_dim))
    memory = torch.zeros(size, dtype=torch.uint8, device=device)
    codes = memory[:, : page * num_kv_heads * head_dim]
    return codes.view(num_blocks, page, num_kv_heads, head_dim)


def is_fp8(cache: Tensor) -> bool:
    """Whether keys or values lie in a cache as they do here."""
    return bool(cache.dtype == torch.uint8)


def blocks_of(cache: Tensor) -> Tensor:
    """A cache of any kind as [B, W]: all that its blocks hold, as it lies in memory."""
    if not is_fp8(cache):
        return cache.flatten(1)
    width = bytes_of_block(*cache.shape[1:])
    return cache.as_strided((cache.shape[0], width), (width, 1))


def exponents_of(
    cache: Tensor,  # [B, P, K, D] uint8
) -> Tensor:  # [B, P, K] uint8
    """The bytes of the rows' scales."""
    num_blocks, page, num_kv_heads, _ = cache.shape
    strides = (cache.stride(0), num_kv_heads, 1)
    start = cache.storage_offset() + cache.shape[1:].numel()
    return cache.as_strided((num_blocks, page, num_kv_heads), strides, start)


def quantize(
    rows: Tensor,  # [..., D]
) -> tuple[Tensor, Tensor]:  # [..., D] uint8, [...] uint8
    """The codes of rows, and the bytes of their scales."""
    wide = rows.float()
    sizes = wide.abs()
    peak = torch.where(sizes < torch.inf, sizes, torch.inf).amax(-1)
    bits = peak.view(torch.int32)
    exponent = (bits >> 23) - _LARGEST_EXPONENT + ((bits & _MANTISSA) > _LARGEST_MANTISSA)
    exponent = exponent.clamp(min=1)
    inverse = ((2 * _BIAS - exponent) << 23).view(torch.float32)
    codes = (wide * inverse[..., None]).to(_FP8).view(torch.uint8)
    finite = bits < _INFINITY
    stored = torch.where(finite, exponent, _NOT_FINITE).to(torch.uint8)
    return torch.where(finite[..., None], codes, 0), stored


def dequantize(
    codes: Tensor,  # [..., D] uint8
    exponents: Tensor,  # [...] uint8
) -> Tensor:  # [..., D] float32
    """The rows that are stored as these bytes. Exact; of one that was not finite, NaN."""
    scale = (exponents.to(torch.int32) << 23).view(torch.float32)
    return codes.contiguous().view(_FP8).float() * scale[..., None]


def stored_as(rows: Tensor, cache: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """What is to be written for rows [T, K, D], and where: parts of a cache [B, P, ...]."""
    if not is_fp8(cache):
        return [(rows.to(cache.dtype), cache)]
    codes, exponents = quantize(rows)
    return [(codes, cache), (exponents, exponents_of(cache))]


def take_blocks(
    cache: Tensor,  # [B, P, K, D]
    blocks: Tensor,  # [n] int32
    heads: int | slice = slice(None),
) -> Tensor:
    """Blocks of a cache of any kind: [n, P, K, D], or [n, P, D] of one head; float32 of FP8."""
    rows = cache[:, :, heads].index_select(0, blocks)
    if not is_fp8(cache):
        return rows
    return dequantize(rows, exponents_of(cache)[:, :, heads].index_select(0, blocks))
