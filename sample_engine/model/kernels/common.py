"""What the model's kernels share: how they are compiled, rows, rounding, prefetching.

How kernels overlap is said in ``kernels.overlap``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["elements", "jit", "padded", "prefetch", "rounded"]


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, with a type; a kernel is built once for all numbers of tokens."""
    varying = [name for name in ("num_tokens",) if name in inspect.signature(function).parameters]
    return triton.jit(function, do_not_specialize=varying)


def padded(size: int) -> int:
    """The smallest power of two that is at least ``size``."""
    return 1 << max(size - 1, 0).bit_length()


def elements(x: torch.Tensor) -> tuple[int, int]:
    """Rows and their stride of a tensor ``[T, C]`` whose rows are contiguous."""
    assert x.dim() == 2, "tokens come packed"
    assert x.stride(1) == 1 or x.shape[1] == 1, "rows have to be contiguous"
    return int(x.shape[0]), int(x.stride(0))


@jit
def prefetch(pointers: tl.tensor) -> None:
    """Fetch the lines at these addresses into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@jit
def rounded(wide: tl.tensor, like: tl.tensor) -> Any:
    """A float32 value as it is after it was stored in the dtype that ``like`` points to."""
    return wide.to(like.dtype.element_ty).to(tl.float32)
