"""Sums, in a worker; one test is for newer GPUs."""

import pytest
from common_cuda import SM80OrLater
from mathlib.worker import run_in_worker


def test_sum_in_a_worker():
    assert run_in_worker(sum, [1, 2, 3]) == 6


@pytest.fixture
def ampere():
    if not SM80OrLater:
        pytest.skip("needs compute capability 8.0")


@pytest.mark.skip(reason="slow")
def test_tf32_sum(ampere):
    assert run_in_worker(sum, [1, 2]) == 3
