"""Compresses the sparse attention cache; written in the CuTe DSL."""

import cutlass
import cutlass.cute as cute


@cute.jit
def compress_kv(rows: list[float], ratio: int) -> list[float]:
    """Mean of every group of ``ratio`` rows."""
    return [cutlass.mean(rows[start : start + ratio]) for start in range(0, len(rows), ratio)]
