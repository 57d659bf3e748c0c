"""The kernel runs in the worker that owns the GPU."""

import pytest
from kernels.rms_norm import rms_norm
from kernels.worker import run_in_worker


def test_rms_norm_scales_to_unit_mean_square():
    row = run_in_worker(rms_norm, [3.0, 4.0, 0.0, 0.0])
    assert sum(value * value for value in row) == pytest.approx(len(row))
