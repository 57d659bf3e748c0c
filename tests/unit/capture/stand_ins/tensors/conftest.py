"""Tensors on "cuda" in the thread of a test, or in those that it starts, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def mode() -> Iterator[Any]:
    from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors

    with CudaTensors() as made:
        yield made


@pytest.fixture
def everywhere() -> Iterator[Any]:
    from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors

    made = CudaTensors()
    with made.in_this_thread_and_new_ones():
        yield made
