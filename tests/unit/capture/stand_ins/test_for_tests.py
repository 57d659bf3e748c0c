"""The stand-ins in the phases of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from pytest_cudafork.capture.stand_ins.for_tests import StandIns  # noqa: E402


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_each_phase_has_them_for_its_length(phase: str) -> None:
    before = torch.cuda.CUDAGraph
    hook: Callable[[], Iterator[Any]] = getattr(StandIns(), f"pytest_runtest_{phase}")
    running = hook()
    next(running)
    assert torch.cuda.CUDAGraph is graphs.CUDAGraph
    with pytest.raises(StopIteration) as ended:
        running.send("the result")  # type: ignore[attr-defined]
    assert ended.value.value == "the result"
    assert torch.cuda.CUDAGraph is before
