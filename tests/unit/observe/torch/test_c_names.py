"""Each function that a CUDA build has in ``torch._C`` answers, initializes or refuses."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.observe.torch.c_names import (
    ACCELERATOR,
    CONSTANTS,
    FUNCTIONS,
    REFUSED,
    REFUSED_TYPES,
    functions,
)
from tests.unit.observe.torch.simulated import Simulated


@pytest.fixture
def sim() -> Any:
    """GPUs that answer."""
    return Simulated()


def test_no_name_stands_in_two_tables() -> None:
    tables = [set(REFUSED), set(REFUSED_TYPES), set(CONSTANTS), set(FUNCTIONS), set(ACCELERATOR)]
    assert len(set().union(*tables)) == sum(map(len, tables))
    assert set(functions()) == set(REFUSED) | set(FUNCTIONS) | set(ACCELERATOR)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_work_and_memory_are_refused_after_the_initialization(name: str, sim: Any) -> None:
    with pytest.raises(RuntimeError, match=f"answers questions but does not compute.*{name}"):
        functions()[name](sim, 1, two=3)
    assert sim.asked == ["ensure"]


ANSWERS: dict[str, tuple[tuple[Any, ...], object, list[str]]] = {
    "_cuda_init": ((), "init", []),
    "_cuda_getDeviceCount": ((), 2, []),
    "_cuda_isInBadFork": ((), False, []),
    "_cuda_getDevice": ((), 0, ["ensure"]),
    "_cuda_exchangeDevice": ((1,), 0, ["ensure"]),
    "_cuda_maybeExchangeDevice": ((-1,), -1, []),
    "_cuda_canDeviceAccessPeer": ((0, 1), True, ["ensure"]),
    "_cuda_hasPrimaryContext": ((0,), False, ["torch._C._cuda_hasPrimaryContext"]),
    "_cuda_getArchFlags": ((), "sm_80 sm_90", []),
    "_cuda_getCompiledVersion": ((), 12080, []),
    "_cuda_synchronize": ((), None, ["ensure"]),
    "_cuda_getCurrentStream": ((1,), (0, 1, 1), ["ensure"]),
    "_cuda_getDefaultStream": ((1,), (0, 1, 1), ["ensure"]),
    "_cuda_getCurrentRawStream": ((0,), 0, ["ensure"]),
    "_cuda_getStreamFromExternal": ((9, 1), (9, 1, 1), ["ensure"]),
    "_cuda_hostMemoryStats": ((), {}, []),
    "_cuda_memorySnapshot": ((), {"segments": [], "device_traces": []}, []),
    "_cuda_isHistoryEnabled": ((), False, ["torch._C._cuda_isHistoryEnabled"]),
    "_nccl_version": ((), (2 << 32) | (27 << 16) | 3, []),
    "_accelerator_getAccelerator": ((), ("device", "cuda"), []),
    "_get_accelerator": ((), ("device", "cuda"), ["torch._C._get_accelerator"]),
    "_accelerator_getDeviceIndex": ((), 0, ["ensure"]),
    "_accelerator_setDeviceIndex": ((1,), None, ["ensure"]),
    "_accelerator_getStream": ((1,), ("stream", 1), ["ensure"]),
    "_accelerator_setStream": (("s",), None, ["ensure", "set s"]),
    "_accelerator_getDeviceCapability": ((0,), {"supported_dtypes": {"float"}}, ["ensure"]),
    "_accelerator_getMemoryInfo": ((0,), (7, 7), ["ensure"]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_question_is_answered_with_the_touch_that_the_real_one_makes(name: str, sim: Any) -> None:
    args, answer, asked = ANSWERS[name]
    assert functions()[name](sim, *args) == answer
    assert sim.asked == asked


def test_a_device_can_be_selected_in_every_way(sim: Any) -> None:
    made = functions()
    made["_cuda_setDevice"](sim, 1)
    assert sim.device == 1
    made["_cuda_exchangeDevice"](sim, 0)
    made["_accelerator_setDeviceIndex"](sim, -1)
    assert sim.device == 0
    made["_cuda_setStream"](sim, stream_id=5, device_index=1, device_type=1)
    assert sim.streams == {1: (5, 1, 1)}


def test_the_statistics_of_memory_are_those_of_nothing(sim: Any) -> None:
    stats = functions()["_cuda_memoryStats"](sim, 0)
    assert stats["allocated_bytes"]["all"]["current"] == 0
