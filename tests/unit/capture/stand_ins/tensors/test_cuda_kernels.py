"""Operators of others with Python code for CUDA, on tensors that stand for those of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.compat.torch_graphs.operators import unregister  # noqa: E402
from tests.support.captures import looking  # noqa: E402

NAME = "cudafork_engine"


def twice(x: Any, out: Any) -> None:
    """What an engine has: it asks where its tensors lie, and makes others there."""
    assert x.is_cuda
    out.copy_(x * torch.full((), 2.0, device="cuda"))


@pytest.fixture
def library() -> Iterator[Any]:
    made = torch.library.Library(NAME, "FRAGMENT")
    made.define("twice(Tensor x, Tensor(a!) out) -> ()")
    yield made
    unregister(made)


def check(operator: Any) -> None:
    x, out = torch.ones(3, device="cuda"), torch.empty(3, device="cuda")
    operator(x, out)
    assert out.tolist() == [2, 2, 2]
    graph = graphs.CUDAGraph()
    with looking() as look:
        with graphs.graph(graph):
            operator(x, out)
        x.fill_(3)
        graph.replay()
        assert look.kinds() == look.kinds("suspicions") == []
    assert out.tolist() == [6, 6, 6]


@pytest.mark.parametrize("early", [True, False])
def test_a_kernel_for_cuda_alone_works_there_and_nowhere_else(library: Any, early: bool) -> None:
    operator = torch.ops.cudafork_engine.twice
    if early:
        library.impl("twice", twice, "CUDA")
    with CudaTensors().in_this_thread_and_new_ones():
        if not early:
            library.impl("twice", twice, "CUDA")
        check(operator)
        with pytest.raises(NotImplementedError, match="CUDA alone"):
            operator(torch.ones(3), torch.empty(3))
    with pytest.raises(NotImplementedError, match="Could not run"):
        operator(torch.ones(3), torch.empty(3))


def test_a_kernel_for_each_device_makes_tensors_there_and_works_on_the_host_too() -> None:
    def thrice(x: Any, out: Any) -> None:
        if x.is_cuda:
            twice(x, out)
        else:
            out.copy_(x * 3)

    schema = "(Tensor x, Tensor(a!) out) -> ()"
    operator = torch.library.custom_op(
        f"{NAME}::thrice", thrice, mutates_args=("out",), schema=schema
    )
    with CudaTensors().in_this_thread_and_new_ones():
        check(operator)
        host = torch.empty(1)
        operator(torch.ones(1), host)
        assert host.tolist() == [3]


def test_a_kernel_for_the_cpu_is_left_alone(library: Any) -> None:
    library.impl("twice", lambda x, out: out.copy_(x * 5).sum() and None, "CPU")
    with CudaTensors().in_this_thread_and_new_ones():
        library.impl("twice", twice, "CUDA")
        host = torch.empty(1)
        torch.ops.cudafork_engine.twice(torch.ones(1), host)
        assert host.tolist() == [5]
