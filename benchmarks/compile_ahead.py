"""Compiles kernels for a GPU without touching one, in processes of their own.

What is compiled lies in Triton's cache afterwards.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["only_compile", "start_compiling"]


def only_compile(architecture: int = 90) -> None:
    """From now on launches of this process compile their kernel and run nothing.

    ``architecture``: the compute capability of the GPU to compile for; 90 is Hopper.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, jit

    class NoDevice:
        """What Triton asks of a driver before it launches anything."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", architecture, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int | None = None) -> int:
            return 0

    run = jit.JITFunction.run

    def compile_it(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    driver.set_active(NoDevice())
    jit.JITFunction.run = compile_it


def _silence() -> None:
    """Triton prints whole modules when a pass fails: let this process print nothing."""
    with open(os.devnull, "w", encoding="utf-8") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)


def start_compiling() -> None:
    """Begin a process of a pool that compiles."""
    _silence()
    only_compile()
