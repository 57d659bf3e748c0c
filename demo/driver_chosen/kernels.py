"""Kernels that are tuned for one generation of GPUs, which the module asks for when imported."""

import triton

TARGET = triton.runtime.driver.active.get_current_target()
NUM_WARPS = 8 if TARGET.backend == "cuda" and TARGET.arch >= 90 else 4
