"""Backward passes, optimizer steps, modules, compiled functions and custom operators in a graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam fused": lambda p: torch.optim.Adam(p, fused=True, capturable=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True, capturable=True),
}


def _net() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Sequential(torch.nn.GELU(), torch.nn.Dropout(0.2)),
        torch.nn.Linear(16, 4),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_training_step_replays_exactly(name: str, set_to_none: bool) -> None:
    torch.manual_seed(0)
    first = _net()
    second = copy.deepcopy(first)
    optimizers = [OPTIMIZERS[name](net.parameters()) for net in (first, second)]
    x, y = torch.randn(5, 8), torch.randn(5, 4)

    def step(net: Any, optimizer: Any) -> Any:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for net, optimizer in zip((first, second), optimizers, strict=True):
        torch.manual_seed(1)
        step(net, optimizer)
    graph = SoftwareBackend().capture(lambda: step(first, optimizers[0]))
    for seed in range(3):
        x.copy_(torch.randn(5, 8))
        torch.manual_seed(seed)
        graph.replay()
        torch.manual_seed(seed)
        assert torch.equal(graph.recording.result, step(second, optimizers[1]))
        for p, q in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["Adam", "NAdam", "RMSprop"])
def test_an_optimizer_that_is_not_capturable_is_refused(name: str) -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = getattr(torch.optim, name)(net.parameters())
    net(torch.ones(2)).sum().backward()
    optimizer.step()
    with pytest.raises(CaptureFailedError, match="capturable=False") as failure:
        SoftwareBackend().capture(optimizer.step)
    assert Path(__file__).name in failure.value.finding.where


def test_forward_and_backward_captured_apart_as_make_graphed_callables_does() -> None:
    w, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    backend = SoftwareBackend()
    pool = backend.new_pool()
    forward = backend.capture(lambda: torch.tanh(x @ w).sum(), pool=pool)
    loss = forward.recording.result
    backward = backend.capture(lambda: torch.autograd.grad(loss, w), pool=pool)
    for _ in range(3):
        x.copy_(torch.randn(3, 3))
        forward.replay()
        backward.replay()
        (expected,) = torch.autograd.grad(torch.tanh(x @ w).sum(), w)
        assert torch.equal(backward.recording.result[0], expected)


def test_checkpoints_double_backward_and_functional_calls() -> None:
    x = torch.randn(4, requires_grad=True)

    def fn() -> Any:
        (once,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (twice,) = torch.autograd.grad(once.sum(), x)
        mapped = torch.func.vmap(torch.func.grad(lambda v: (v**2).sum()))(x.detach().view(2, 2))
        return twice, mapped

    graph = SoftwareBackend().capture(fn)
    graph.replay()
    for got, expected in zip(graph.recording.result, fn(), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_it_works_in_each_grad_mode(mode: Any) -> None:
    net, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    with mode():
        graph = SoftwareBackend().capture(lambda: net(x).relu())
    graph.replay()
    assert torch.equal(graph.recording.result, net(x).relu())


def test_autocast_is_recorded() -> None:
    net, x = torch.nn.Linear(3, 3), torch.randn(2, 3)

    def fn() -> Any:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return net(x)

    graph = SoftwareBackend().capture(fn)
    graph.replay()
    assert torch.equal(graph.recording.result, fn())


@pytest.fixture
def ops() -> Any:
    """Custom operators: functional and mutable, with and without a fake kernel."""
    library = torch.library.Library("cudafork_c1", "FRAGMENT")
    library.define("plain(Tensor x, float f) -> Tensor")
    library.define("change(Tensor(a!) x) -> ()")
    library.define("both(Tensor(a!) x, Tensor y) -> Tensor")
    library.define("on_host(Tensor x) -> Tensor")
    library.impl("plain", lambda x, f: x * f + 1, "CPU")

    def change(x: Any) -> None:
        x.add_(1)

    def both(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x + y

    library.impl("change", change, "CompositeExplicitAutograd")
    library.impl("both", both, "CPU")
    library.impl("on_host", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
    torch.library.register_fake("cudafork_c1::plain", lambda x, f: torch.empty_like(x), lib=library)
    yield torch.ops.cudafork_c1
    library._destroy()


def test_custom_operators_are_recorded_by_what_they_do(ops: Any) -> None:
    x = torch.randn(4)

    def fn() -> Any:
        y = ops.plain(x, 2.0)
        y = y if ops.change(y) is None else None
        return ops.both(y, x) + y

    backend = SoftwareBackend()
    graph = backend.capture(fn)
    names = ["aten::mul", "aten::add", "aten::add_", "aten::mul_", "aten::add", "aten::add"]
    assert [node.name for node in graph.recording.nodes or ()] == names
    x.copy_(torch.randn(4))
    graph.replay()
    assert torch.equal(graph.recording.result, fn())
    assert [node.name for node in backend.record(fn).nodes or ()] == names


def test_a_custom_operator_that_computes_on_the_host_is_refused(ops: Any) -> None:
    x = torch.randn(4)
    with pytest.raises(CaptureFailedError, match="numpy") as failure:
        SoftwareBackend().capture(lambda: ops.on_host(x))
    assert Path(__file__).name in failure.value.finding.where


def test_a_custom_op_with_the_decorator_works_with_autograd() -> None:
    @torch.library.custom_op("cudafork_c1b::twice", mutates_args=())  # type: ignore[untyped-decorator]
    def twice(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        return x * 2

    twice.register_autograd(lambda context, grad: grad * 2)
    x = torch.ones(3, requires_grad=True)
    graph = SoftwareBackend().capture(lambda: torch.autograd.grad(twice(x).sum(), x))
    graph.replay()
    assert graph.recording.result[0].tolist() == [2, 2, 2]
