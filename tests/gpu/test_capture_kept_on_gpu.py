"""Real CUDA graphs: what is kept of the warm-up, stale inputs, and graphs of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = [
    pytest.mark.gpu,
    needs_torch,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    import torch

    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()


class Layer:
    """Plans once; the kernels of its plan run elsewhere, too."""

    def __init__(self) -> None:
        import torch

        self.buffer = torch.zeros(4, device="cuda")
        self.plan: Any = None
        self.to_be_planned = True

    def new_tensor(self, lens: Any) -> Any:
        if self.plan is None:
            self.plan = lens.float().rsqrt()
        return self.plan

    def filled_buffer(self, lens: Any) -> Any:
        if self.to_be_planned:
            self.to_be_planned = False
            self.buffer.copy_(lens.float().rsqrt())
        return self.buffer

    def each_time(self, lens: Any) -> Any:
        return self.buffer.copy_(lens.float().rsqrt())


@pytest.mark.parametrize("plan", ["new_tensor", "filled_buffer", "each_time"])
def test_a_plan_that_a_layer_keeps_is_found_by_its_memory(plan: str) -> None:
    import torch

    from pytest_cudafork.capture.pair.capture_pair import capture_pair
    from pytest_cudafork.errors import CapturePairError

    layer = Layer()
    lens = torch.tensor([1, 2, 4, 8], device="cuda")
    query = torch.randn(4, 8, device="cuda")

    def create(desc: int, warmup: bool) -> Any:
        state = {"lens": lens}

        def forward() -> Any:
            tiles = getattr(layer, plan)(state["lens"])[:, None]
            return query.abs().add(1).rsqrt() * tiles + state["lens"].float()[:, None]

        return forward, state

    def check() -> None:
        capture_pair(
            create,
            4,
            persistent={"lens": lens, "query": query},
            vary=[lambda: lens.add_(3)],
            backend="cuda",
        )

    if plan == "each_time":
        check()
        return
    with pytest.raises(CapturePairError) as caught:
        check()
    (found,) = (one for one in caught.value.findings if one.check == "missing-kernels")
    assert "from persistent['lens']" in found.what
    assert Path(__file__).name in found.where


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8", "int8", "bool"])
def test_what_a_refill_leaves_is_stale(kind: str) -> None:
    import torch

    from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager

    table = torch.zeros(4, dtype=getattr(torch, kind), device="cuda")

    def batch(count: int) -> Any:
        return lambda: table[:count].fill_(1)

    with pytest.raises(ReplayDiffersError, match="stale padding"):
        assert_replay_equals_eager(
            lambda t: t.sum(), [table], vary=[batch(3), batch(1)], refills=True, backend="cuda"
        )


def own_graph(fn: Any) -> Any:
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fn()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def test_a_graph_of_its_own_that_leaves_out_a_buffer_is_found() -> None:
    import torch

    from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager

    ids = torch.tensor([1, 2, 3], device="cuda")
    counts = torch.zeros(3, dtype=torch.int64, device="cuda")

    def fn(ids: Any) -> Any:
        counts.copy_(ids)
        return ids * 2

    assert_replay_equals_eager(fn, [ids], replay=own_graph(lambda: fn(ids)), backend="cuda")
    with pytest.raises(ReplayDiffersError, match="counts"):
        assert_replay_equals_eager(fn, [ids], replay=own_graph(lambda: ids * 2), backend="cuda")


def test_a_graphed_callable_may_return_its_own_weight() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    model, x = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    graphed = torch.cuda.make_graphed_callables(model, (x,))

    def fn(x: Any) -> Any:
        return torch.nn.functional.linear(x, weight, bias), weight

    assert_replay_equals_eager(
        fn,
        [x],
        replay=lambda: (graphed(x).detach(), model.weight.detach()),
        vary=[lambda: x.normal_()],
        rtol=1e-3,
        atol=1e-3,
        backend="cuda",
    )


def test_derivatives_of_derivatives() -> None:
    import torch

    from pytest_cudafork import assert_replay_equals_eager

    x = torch.randn(4, device="cuda")

    def fn(x: Any) -> Any:
        return torch.func.hessian(lambda v: (v**3).sum())(x)

    assert_replay_equals_eager(fn, [x], vary=[lambda: x.normal_()], backend="cuda")


def test_a_replay_that_computes_nan_is_not_called_one_that_does_nothing() -> None:
    import torch

    from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager

    divisor, x = [0.0], torch.ones(4, device="cuda")

    def other() -> None:
        divisor[0] = 1.0

    with pytest.raises(ReplayDiffersError) as caught:
        assert_replay_equals_eager(
            lambda x: (x - x) / divisor[0], [x], vary=[other], backend="cuda"
        )
    assert [one.check for one in caught.value.findings] == ["replay-differs"]
