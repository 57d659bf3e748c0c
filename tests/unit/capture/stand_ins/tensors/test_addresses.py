"""What would hand an address on a GPU to other libraries is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from pytest_cudafork.capture.stand_ins.tensors import addresses  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.errors import GraphNotJudgedError  # noqa: E402
from pytest_cudafork.observe.base.undo import UndoStack  # noqa: E402

_REFUSED: dict[str, Callable[[Any], Any]] = {
    "Tensor.__cuda_array_interface__": lambda x: x.__cuda_array_interface__,
    "Tensor.__dlpack__()": lambda x: x.__dlpack__(),
    "to_dlpack(tensor)": lambda x: torch.utils.dlpack.to_dlpack(x),
}


@pytest.fixture(autouse=True)
def in_place() -> Iterator[None]:
    with UndoStack() as undo, CudaTensors().in_this_thread_and_new_ones():
        addresses.put_in_place(undo)
        yield


@pytest.mark.parametrize("name", _REFUSED)
def test_it_is_refused_by_name_and_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(GraphNotJudgedError) as error:
        _REFUSED[name](torch.ones(2, device="cuda"))
    assert str(error.value).startswith(name)
    assert "tensor.cpu()" in str(error.value)


def test_numpy_gets_no_memory_of_a_gpu_by_its_protocol() -> None:
    x = torch.ones(2, device="cuda")
    with pytest.raises(GraphNotJudgedError, match="__dlpack__"):
        numpy.from_dlpack(x)
    assert numpy.from_dlpack(x.cpu()).tolist() == [1, 1]


def test_torch_takes_such_a_tensor_over_and_it_stays_there() -> None:
    x = torch.ones(2, device="cuda")
    for take in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
        taken = take(x)
        assert taken.is_cuda
        assert taken.data_ptr() == x.data_ptr()
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCUDA, 0)


def test_tensors_of_the_host_are_handed_out_as_ever() -> None:
    host = torch.ones(2)
    assert host.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)
    for capsule in (host.__dlpack__(), torch.utils.dlpack.to_dlpack(host)):
        assert not torch.utils.dlpack.from_dlpack(capsule).is_cuda
    assert not hasattr(host, "__cuda_array_interface__")
