"""Helpers of several test files."""

from engine.kernels.linear import choose_linear_kernel
from engine.worker import run_in_worker


def assert_linear_kernel(dtype: str, expected: str) -> None:
    assert choose_linear_kernel(dtype) == expected


def run_engine(prompt: str) -> str:
    return run_in_worker(str.upper, prompt)
