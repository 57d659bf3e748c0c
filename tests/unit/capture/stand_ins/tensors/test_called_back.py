"""Code that torch calls in a backward pass: it sees tensors where they lie, and may make others."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from pytest_cudafork.capture.stand_ins.capturing.graphs import CUDAGraph, graph  # noqa: E402
from tests.support.captures import looking  # noqa: E402

pytestmark = [pytest.mark.usefixtures("everywhere"), pytest.mark.parametrize("seen", [False, True])]


class _Twice(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Doubles a tensor; its backward pass works with new tensors of both ways to ask for a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        assert x.device == grad.device == torch.ones(1, device=grad.device).device
        assert (grad.is_cuda, grad.is_cpu, grad.get_device()) == (x.is_cuda, x.is_cpu, 0)
        return grad.to(x.device) * torch.full((2,), 2.0, device="cuda") + torch.zeros_like(x)


def _looked_at(seen: bool) -> contextlib.AbstractContextManager[object]:
    return looking() if seen else contextlib.nullcontext()


def _root(x: Any) -> Any:
    return _Twice.apply(x).sum()


@pytest.mark.parametrize(
    "run",
    [
        lambda x: _root(x).backward(),
        lambda x: torch.autograd.backward(_root(x)),
        lambda x: setattr(x, "grad", torch.autograd.grad(_root(x), x)[0]),
    ],
)
def test_functions_of_autograd(run: Any, seen: bool) -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    with _looked_at(seen):
        run(x)
    assert x.grad.is_cuda
    assert x.grad.tolist() == [2, 2]


def test_hooks(seen: bool) -> None:
    x, found = torch.ones(2, device="cuda", requires_grad=True), []
    y = x * 3

    def hook(grad: Any) -> Any:
        found.append(grad.device.type)
        return grad * torch.ones(2, device="cuda")

    y.register_hook(hook)
    x.register_post_accumulate_grad_hook(lambda leaf: found.append(leaf.grad.device.type))
    with _looked_at(seen):
        y.sum().backward()
    assert found == ["cuda", "cuda"]


@pytest.mark.parametrize("again", [False, True])
def test_a_checkpoint_runs_its_layers_as_before(again: bool, seen: bool) -> None:
    places = []

    def layer(x: Any) -> Any:
        places.append(x.device.type)
        bias = torch.arange(2, device="cuda") + torch.ones(2, device=x.device)
        return x.exp().sigmoid() * bias

    x = torch.ones(2, device="cuda", requires_grad=True)
    with _looked_at(seen):
        checkpoint(layer, x, use_reentrant=again, preserve_rng_state=False).sum().backward()
    assert places == ["cuda", "cuda"]


@pytest.mark.parametrize("pinned", [False, True])
def test_what_is_saved_may_be_packed_on_the_host(pinned: bool, seen: bool) -> None:
    x, found = torch.ones(2, device="cuda", requires_grad=True), []

    def unpack(packed: Any) -> Any:
        found.append(packed.device.type)
        return packed.to("cuda")

    with _looked_at(seen):
        with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
            root = _root(x.exp())
        root.backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.cpu(), unpack):
            root = _root(x.exp())
        root.backward()
    assert set(found) == {"cpu"}


@pytest.mark.parametrize("run", [torch.Tensor.backward, torch.autograd.backward])
def test_gradients_of_the_host_lie_there(run: Any, seen: bool) -> None:
    table, layer = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 1).to("cuda")
    with _looked_at(seen):
        run(layer(table(torch.tensor([1])).to("cuda")).sum())
    assert table.weight.grad.device.type == "cpu"
    assert layer.weight.grad.is_cuda
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda grad: grad * (1 if grad.device.type == "cpu" else 0))
    with _looked_at(seen):
        run(leaf.sum())
    assert leaf.grad.tolist() == [1, 1]


def test_a_backward_pass_is_captured(seen: bool) -> None:
    x, made = torch.ones(2, device="cuda", requires_grad=True), CUDAGraph()
    with _looked_at(seen):
        with graph(made):
            x.grad = None
            _root(x * x).backward()
        gradient = x.grad
        with torch.no_grad():
            x.fill_(3)
        made.replay()
    assert gradient.tolist() == [12, 12]
