"""What the model's kernels share: rows, rounding, prefetching."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from sample_engine.kernels.common import jit

__all__ = ["elements", "prefetch", "rounded"]


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
