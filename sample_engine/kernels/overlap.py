"""How our kernels overlap on a GPU: CUDA's programmatic dependent launch (Hopper and later).

A kernel that is launched with it starts while the one before it still runs, does what depends on
nobody (it fetches weights into the L2 cache), and then waits for what the others computed. Each of
our kernels waits before it reads, writes or returns; so by the time it goes on, all kernels before
it are done, and what they wrote is seen.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

__all__ = ["launch_early", "wait_for_inputs"]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def launch_early(OVERLAP: tl.constexpr) -> None:
    """Let the next kernel start as soon as there is room for it."""
    if OVERLAP:
        cuda.gdc_launch_dependents()


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def wait_for_inputs(OVERLAP: tl.constexpr) -> None:
    """Wait until all kernels before this one are done, and what they wrote can be read."""
    if OVERLAP:
        cuda.gdc_wait()
