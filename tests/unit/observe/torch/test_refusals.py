"""What the present face refuses, and the modules that it has inside ``torch._C``."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.observe.torch.refusals import (
    refusal,
    refused_call,
    refused_type,
    stand_in_modules,
)
from tests.unit.observe.torch.simulated import FACE, Simulated


@pytest.fixture
def sim() -> Any:
    """GPUs that answer."""
    return Simulated()


def test_a_refusal_says_what_and_what_to_do() -> None:
    text = str(refusal("a copy", "sm_90"))
    assert "phantom GPU (sm_90)" in text
    assert "refused a copy. Run this on a machine with a GPU, or mark the test" in text
    assert "lie on the CPU: pytest --cuda-fork-graphs=software, or run --captures." in text


def test_a_refused_call_initializes_first_as_the_real_one_does(sim: Any) -> None:
    with pytest.raises(RuntimeError, match=FACE):
        refused_call(sim, "work")(1, two=3)
    assert sim.asked == ["ensure"]


def test_a_refused_class_has_its_name_and_no_instance(sim: Any) -> None:
    made = refused_type(sim, "CUDAGraph")
    assert (made.__name__, made.__module__) == ("CUDAGraph", "torch._C")
    with pytest.raises(RuntimeError, match="refused CUDAGraph"):
        made()


def test_the_runtime_answers_and_does_not_work(sim: Any) -> None:
    runtime: Any = stand_in_modules(sim)["_cudart"]
    success = runtime.cudaError.success
    assert success == 0
    assert runtime.cudaGetErrorString(runtime.cudaError(2)) == "CUDA error 2"
    assert runtime.cudaMemGetInfo(0) == (7, 7)
    assert runtime.cudaProfilerStart() is runtime.cudaProfilerStop() is success
    with pytest.raises(RuntimeError, match="cudaHostRegister"):
        runtime.cudaHostRegister(0, 0, 0)


def test_the_other_modules_tell_their_versions(sim: Any) -> None:
    made: Any = stand_in_modules(sim)
    assert made["_cudnn"].is_cuda
    major, minor, patch = made["_cudnn"].getRuntimeVersion()
    assert made["_cudnn"].getVersionInt() == 10000 * major + 100 * minor + patch
    assert made["_cudnn"].getCompileVersion() == (major, minor, patch)
    assert made["_cusparselt"].getVersionInt() > 0


def test_ranges_of_a_profiler_go_nowhere(sim: Any) -> None:
    nvtx: Any = stand_in_modules(sim)["_nvtx"]
    assert nvtx.rangePushA("a") == nvtx.rangePop() == nvtx.rangeStartA("a") == 0
    assert nvtx.rangeEnd(0) is nvtx.markA("a") is None
    with pytest.raises(RuntimeError):
        nvtx.deviceRangeStart("a")
