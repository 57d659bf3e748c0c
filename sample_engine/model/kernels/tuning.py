"""How the model's kernels are built for a shape: tables that ``sweep_model_kernels.py`` found.

Nothing is measured when the engine runs. A configuration depends on the weight's shape alone, not
on the number of tokens: so what a token gets does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sample_engine.model.kernels.linear import MOST_ROWS, LinearConfig

__all__ = ["MOST_TOKENS", "OVERLAP", "linear_config"]

# Up to so many tokens linear layers are left to our kernel; 0: all of them to cuBLAS.
MOST_TOKENS = MOST_ROWS
# Whether a kernel may start before the one before it has ended (Hopper and later).
OVERLAP = True

_BY_SHAPE: Mapping[tuple[int, int], LinearConfig] = MappingProxyType(
    {
        # Llama 3 8B
        (6144, 4096): LinearConfig(block_n=64, block_k=256, num_warps=4, num_stages=4),
        (4096, 4096): LinearConfig(block_n=64, block_k=256, num_warps=4, num_stages=4, split=2),
        (28672, 4096): LinearConfig(64, 128, num_warps=4, num_stages=4, ahead=128),
        (4096, 14336): LinearConfig(64, 256, num_warps=4, num_stages=3, split=2, ahead=256),
        (128256, 4096): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=4),
        # its draft head
        (6144, 8192): LinearConfig(64, 256, num_warps=4, num_stages=4, split=2, ahead=128),
        (4096, 12288): LinearConfig(64, 128, num_warps=4, num_stages=6, split=2),
        (32000, 4096): LinearConfig(64, 128, num_warps=4, num_stages=4, ahead=128),
        # one of two ranks
        (3072, 4096): LinearConfig(block_n=64, block_k=256, num_warps=4, num_stages=3, split=2),
        (4096, 2048): LinearConfig(block_n=64, block_k=256, num_warps=4, num_stages=3, split=2),
        (14336, 4096): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=4),
        (4096, 7168): LinearConfig(block_n=64, block_k=256, num_warps=4, num_stages=3, split=2),
        (64128, 4096): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=4),
        # one of four
        (1536, 4096): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=5, split=4),
        (4096, 1024): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=4),
        (7168, 4096): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=5, split=2),
        (4096, 3584): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=5, split=2),
        (32064, 4096): LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=4),
    }
)
_SMALL = LinearConfig(block_n=16, block_k=128, num_warps=4, num_stages=4)
_LARGE = LinearConfig(block_n=64, block_k=128, num_warps=4, num_stages=4)
_LARGE_N = 16384  # from here on large tiles are enough programs


def linear_config(size_n: int, size_k: int) -> LinearConfig:
    """How the linear layer of a weight ``[N, K]`` is built."""
    found = _BY_SHAPE.get((size_n, size_k))
    return found or (_LARGE if size_n >= _LARGE_N else _SMALL)
