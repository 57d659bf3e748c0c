"""Moves between the host and a GPU that is not there: what is copied, shared, pinned, refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from pytest_cudafork.capture.stand_ins.capturing.graphs import CUDAGraph, graph  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors import moves  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402
from tests.support.host_copies import COPIES, answer  # noqa: E402

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.usefixtures("mode")
def test_a_copy_to_another_place_shares_no_memory_and_one_to_the_same_is_none() -> None:
    host = torch.zeros(2)
    for moved in (
        host.cuda(),
        host.cuda(1),
        host.to("cuda"),
        host.to(GPU),
        host.to(0),
        host.to(device="cuda"),
        host.to("cuda", torch.float64),
        host.to(torch.ones(1, device="cuda")),
    ):
        assert moved.is_cuda
        moved.fill_(3)
        assert moved.to("cuda:0", non_blocking=True).is_cuda
        assert not moved.cpu().is_cuda
        assert not moved.to("cpu").is_cuda
        assert not moved.to(host).is_cuda
    assert host.tolist() == [0, 0]
    there = host.cuda()
    assert there.to("cuda") is there
    assert there.cuda() is there
    assert there.cpu().fill_(5).tolist() == [5, 5]
    assert there.tolist() == [0, 0]
    assert there.to(torch.float64).is_cuda
    assert host.to("cpu") is host


@pytest.mark.usefixtures("mode")
def test_a_tensor_as_the_type_of_another_lies_where_that_one_does() -> None:
    there, host = torch.ones(2, dtype=torch.float64, device="cuda"), torch.ones(2)
    moved = host.type_as(there)
    assert (moved.device, moved.dtype) == (GPU, torch.float64)
    assert there.type_as(there) is there
    back = there.type_as(host)
    assert (back.device, back.dtype) == (CPU, torch.float32)
    assert torch.ones(2, device="cuda").half().type_as(there).device == GPU
    with pytest.raises(CaptureFailedError, match="host-sync"), graph(CUDAGraph()):
        host.type_as(there)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    "move",
    [
        lambda module: module.to(GPU),
        lambda module: module.to(device=GPU),
        lambda module: module.to(GPU, torch.float32),
        lambda module: module.to(torch.ones(1, device="cuda")),
        lambda module: module.to("cuda"),
        lambda module: module.cuda(),
    ],
)
def test_a_module_is_moved_there_in_whatever_way_the_device_is_given(
    move: Callable[[Any], Any], moved: bool
) -> None:
    module = torch.nn.BatchNorm1d(2)
    if moved:
        module.cuda()
    assert {each.device for each in move(module).state_dict().values()} == {GPU}
    assert {each.device for each in module.to(CPU).state_dict().values()} == {CPU}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("copies", "words"),
    [
        (lambda host, there: host.to("cuda"), "from host data"),
        (lambda host, there: host.cuda(non_blocking=True), "from host data"),
        (lambda host, there: host.to(there), "from host data"),
        (lambda host, there: there[:1].copy_(host[:1]), "from host data"),
        (lambda host, there: host.copy_(there), "reads a value on the host"),
        (lambda host, there: there.to(host.device), "reads a value on the host"),
    ],
)
def test_a_capture_refuses_copies_between_host_and_device(copies: Any, words: str) -> None:
    host, there = torch.zeros(2), torch.zeros(2, device="cuda")
    with pytest.raises(CaptureFailedError, match=words), graph(CUDAGraph()):
        copies(host, there)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("name", COPIES)
def test_a_capture_takes_what_cuda_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    expected = COPIES[name].answer
    assert answer(COPIES[name].call, graph, CUDAGraph()) == expected


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("copies", "words"),
    [
        (lambda there, pinned: there.copy_(pinned), "waits for its copy to end"),
        (lambda there, pinned: pinned.cuda(), "waits for its copy to end"),
        (lambda there, pinned: pinned.copy_(there), "waits for its copy to end"),
        (lambda there, pinned: there.copy_(pinned[:1], non_blocking=True), "needs a buffer"),
        (lambda there, pinned: pinned[::2].copy_(there[:2], True), "needs a buffer"),
        (lambda there, pinned: there[torch.tensor([1])], "an index that lies on the host"),
        (lambda there, pinned: there.__setitem__(torch.tensor([1]), 3), "an index that lies on"),
        (lambda there, pinned: there.__setitem__(slice(2), torch.ones(2)), "from host data"),
        (lambda there, pinned: there.__setitem__(0, torch.tensor(1.0)), "from host data"),
        (lambda there, pinned: there.__setitem__(0, pinned[0]), "waits for its copy to end"),
        (lambda there, pinned: pinned.__setitem__(0, there[0]), "waits for its copy to end"),
        (lambda there, pinned: torch.ones(4).__setitem__(0, there[0]), "reads a value on the host"),
        (lambda there, pinned: torch.ones(4).fill_(there[0]), "reads a value on the host"),
        (lambda there, pinned: torch.as_tensor(numpy.ones(2), device="cuda"), "from host data"),
        (lambda there, pinned: torch.as_tensor(torch.ones(2), device="cuda"), "from host data"),
        (lambda there, pinned: there[[0, 1]], "from host data"),
        (lambda there, pinned: torch._foreach_copy_([there], [torch.ones(4)]), "from host data"),
        (lambda there, pinned: pinned.to("cuda", torch.float64, False, True), "waits for its copy"),
    ],
)
def test_a_refused_copy_says_what_is_missing(copies: Any, words: str) -> None:
    there, pinned = torch.zeros(4, device="cuda"), torch.zeros(4, pin_memory=True)
    with pytest.raises(CaptureFailedError, match=words), graph(CUDAGraph()):
        copies(there, pinned)


@pytest.mark.usefixtures("everywhere")
def test_data_that_is_asked_for_on_a_gpu_is_a_copy() -> None:
    array, host = numpy.zeros(2), torch.zeros(2)
    made = [torch.as_tensor(array, device="cuda"), torch.asarray(host, device=GPU)]
    with torch.device("cuda"):
        made += [torch.as_tensor(array), torch.as_tensor([0.0, 0.0])]
    array[:] = 3
    host.fill_(3)
    assert [(each.is_cuda, each.tolist()) for each in made] == [(True, [0, 0])] * 4
    assert host.is_cpu
    assert torch.as_tensor(array).is_cpu
    assert torch.as_tensor(made[0]) is made[0]
    assert torch.as_tensor(made[0], device="cpu").is_cpu
    assert torch.from_dlpack(made[0]).is_cuda
    assert torch.utils.dlpack.from_dlpack(made[0]).is_cuda
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
        made[1].pin_memory()


@pytest.mark.usefixtures("mode")
def test_what_lies_on_a_gpu_is_no_array() -> None:
    there = torch.ones(2, device="cuda:1")
    for converts in (there.numpy, lambda: numpy.asarray(there)):
        with pytest.raises(TypeError, match="can't convert cuda:1 device type tensor to numpy"):
            converts()
    assert there.numpy(force=True).tolist() == [1, 1]
    assert numpy.asarray(there.cpu()).tolist() == torch.ones(2).numpy().tolist()
    with pytest.raises(CaptureFailedError, match="numpy"), graph(CUDAGraph()):
        there.numpy()


@pytest.mark.usefixtures("mode")
def test_a_capture_takes_a_copy_to_pinned_memory_that_nobody_waits_for() -> None:
    there, made = torch.ones(2, device="cuda"), CUDAGraph()
    pinned, plain = torch.zeros(2, pin_memory=True), torch.zeros(2)
    with graph(made):
        pinned.copy_(there * 3, non_blocking=True)
    assert pinned.tolist() == [0, 0]
    made.replay()
    assert pinned.tolist() == [3, 3]
    refused: list[Any] = [
        lambda: plain.copy_(there, non_blocking=True),
        lambda: plain.copy_(there, True),
    ]
    for copies in refused:
        with (
            pytest.raises(CaptureFailedError, match="reads a value on the host"),
            graph(CUDAGraph()),
        ):
            copies()


@pytest.mark.usefixtures("mode")
def test_pinned_memory_says_so_and_is_a_copy_unless_it_was_pinned() -> None:
    host = torch.zeros(2)
    pinned = host.pin_memory()
    assert (host.is_pinned(), pinned.is_pinned(), pinned[:1].is_pinned()) == (False, True, True)
    assert torch.zeros(2, pin_memory=True).is_pinned()
    assert not torch.zeros(2, device="cuda").is_pinned()
    host.fill_(3)
    assert pinned.tolist() == [0, 0]
    assert pinned.pin_memory() is pinned


def test_memory_is_pinned_also_where_a_session_has_hooked_the_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @functools.wraps(torch.Tensor.pin_memory)
    def hooked(tensor: Any, *args: Any) -> Any:
        if torch.overrides.has_torch_function((tensor,)):
            return torch.overrides.handle_torch_function(hooked, (tensor,), tensor, *args)
        raise RuntimeError("refused")

    monkeypatch.setattr(torch.Tensor, "pin_memory", hooked)
    with CudaTensors():
        assert torch.zeros(2).pin_memory().is_pinned()


@pytest.mark.usefixtures("mode")
def test_what_moves_nothing_has_no_place_here() -> None:
    made = moves.Moves()
    assert made.of(torch.Tensor.to) is not None
    assert made.of(torch.Tensor.add) is None
    assert moves.device_of(torch.ones(1, device="cuda:2")) == torch.device("cuda", 2)
    assert moves.device_of(torch.ones(1)) == CPU
