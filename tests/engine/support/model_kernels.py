"""Random tensors and errors for tests of the model's kernels in Triton's interpreter.

bfloat16 is not here: the interpreter gets it wrong without a word; test_kernels_on_gpu.py has it,
and what overlaps.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
by_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
interpreted = pytest.mark.usefixtures("interpreter")


def random_tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relative_error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())
