"""The kernels of an eager run, from the profiler's events."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


def test_kernels_of_the_profiler_get_the_line_of_their_step() -> None:
    from pytest_cudafork.capture.cuda.steps import Step
    from pytest_cudafork.capture.cuda.warmup_kernels import Event, nodes_of

    steps = [
        Step("aten.add.Tensor", "a.py:1", True),
        Step("twice_kernel", "a.py:2", True),
        Step("twice_kernel", "a.py:3", True, tuning=True),
    ]
    events = [
        Event("cudafork step 0", False, 100, 200, 1),
        Event("aten::add", False, 110, 190, 2),
        Event("cudaLaunchKernel", False, 150, 160, 71),
        Event("cudafork step 1", False, 300, 400, 3),
        Event("cuLaunchKernelEx", False, 350, 360, 72),
        Event("cudafork step 2", False, 500, 600, 4),
        Event("cuLaunchKernelEx", False, 550, 560, 73),
        Event("cudaMemcpyAsync", False, 700, 710, 74),
        # What ran on the device comes later, and in an order of its own.
        Event("Memcpy DtoD (Device -> Device)", True, 4000, 4100, 74),
        Event("twice_kernel", True, 2000, 2100, 72),
        Event("void mine::add<float>(int)", True, 1000, 1100, 71, 2),
        Event("twice_kernel", True, 3000, 3100, 73),
        Event("my annotation", True, 1000, 5000, 9, annotation=True),
        Event("Stream Wait Event", True, 1200, 1200, 75),
        Event("Memset (Device)", True, 5000, 5100, 76),
    ]
    kernels = nodes_of(events, steps)
    assert [tuple(node) for node in kernels.nodes or ()] == [
        ("kernel", "add<float>", "a.py:1"),
        ("kernel", "twice_kernel", "a.py:2"),
        ("memcpy", "memcpy", ""),
        ("memset", "memset", ""),
    ]
    assert kernels.first == {0: 0, 1: 1}


def test_a_profiler_without_cupti_says_so_and_runs_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from pytest_cudafork.capture.cuda.warmup_kernels import KernelRecorder

    cpu = torch.profiler.ProfilerActivity.CPU
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {cpu})
    recorder = KernelRecorder()
    ran = []
    with recorder.running():
        ran.append(1)
    assert ran == [1]
    kernels = recorder.kernels([])
    assert kernels.nodes is None
    assert "CUPTI" in kernels.why_not


def test_a_profiler_at_work_already_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.capture.cuda.warmup_kernels import KernelRecorder

    activities = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: activities)

    class Busy:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("Profiler is already enabled on this thread")

    monkeypatch.setattr(torch.profiler, "profile", Busy)
    recorder = KernelRecorder()
    with recorder.running():
        pass
    assert "already enabled" in recorder.kernels([]).why_not
