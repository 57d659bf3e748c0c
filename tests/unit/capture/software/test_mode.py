"""Operators of functions, and of others: what the dispatch modes make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

flex = pytest.importorskip("torch.nn.attention.flex_attention")

from torch.nn import functional as F  # noqa: E402

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, GraphCaptureError  # noqa: E402


def _cond(x: Any, gate: Any) -> Any:
    return torch.cond(gate, lambda x: x + 1, lambda x: x - 1, (x,))


def test_cond_on_a_tensor_is_refused_with_its_line() -> None:
    gate, x = torch.tensor(True), torch.ones(3)
    with pytest.raises(GraphCaptureError) as failure:
        assert_replay_equals_eager(lambda x: _cond(x, gate), [x], backend="software")
    text = str(failure.value)
    assert "[host-sync]" in text
    assert Path(__file__).name in text
    assert "dynamo" not in text


def test_cond_is_recorded_eagerly_and_with_a_number_of_the_host() -> None:
    x, backend = torch.ones(3), SoftwareBackend()
    eager = backend.record(lambda: _cond(x, x.sum() > 9))
    assert eager.result.tolist() == [0, 0, 0]
    assert "aten::sub" in [node.name for node in eager.nodes or ()]
    graph = backend.capture(lambda: _cond(x, torch.tensor(True)))
    graph.replay()
    assert graph.recording.result.tolist() == [2, 2, 2]


def test_while_loop_is_refused() -> None:
    loop = pytest.importorskip("torch._higher_order_ops").while_loop
    x = torch.ones(3)
    with pytest.raises(CaptureFailedError, match="reads a value on the host"):
        SoftwareBackend().capture(lambda: loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x,)))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_is_recorded(compiled: bool) -> None:
    q, scale = torch.randn(1, 2, 16, 8), torch.tensor(2.0)
    attention = flex.flex_attention
    if compiled:
        attention = torch.compile(attention, backend="eager")

    def fn(q: Any) -> Any:
        return attention(q, q, q, score_mod=lambda score, b, h, i, j: score * scale + i - j)

    report = assert_replay_equals_eager(
        fn, [q], vary=[q.normal_, lambda: scale.fill_(3.0)], backend="software"
    )
    assert report.nodes
    assert torch.allclose(fn(q), fn(q))  # the compiler is as it was


def test_an_operator_of_functions_that_cannot_be_recorded_is_refused() -> None:
    from torch._ops import HigherOrderOperator

    class Odd(HigherOrderOperator):  # type: ignore[misc]  # torch is not followed
        def __init__(self) -> None:
            super().__init__("cudafork_odd")
            self.fallthrough(torch._C.DispatchKey.AutogradCPU)

        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args)

    odd, x = Odd(), torch.ones(3)
    try:
        with pytest.raises(CaptureFailedError, match=r"cudafork_odd.*not supported") as failure:
            SoftwareBackend().capture(lambda: odd(lambda x: x, x))
    finally:
        torch._ops._higher_order_ops.pop("cudafork_odd", None)
    assert Path(__file__).name in failure.value.finding.where


X = torch.randn(2, 4, 6, requires_grad=True)


CELL = torch.nn.LSTMCell(6, 3, bias=False)


PARTLY = {
    "conv, some gradients": lambda: torch.autograd.grad(
        F.conv1d(X, torch.ones(2, 4, 3, requires_grad=True), torch.zeros(2)).sum(), X
    ),
    "conv, input frozen": lambda: torch.autograd.grad(
        F.conv1d(X.detach(), (w := torch.ones(2, 4, 3, requires_grad=True))).sum(), w
    ),
    "layer norm without weights": lambda: torch.autograd.grad(F.layer_norm(X, (6,)).sum(), X),
    "group norm without weights": lambda: torch.autograd.grad(F.group_norm(X, 2).sum(), X),
    "batch norm without statistics": lambda: torch.autograd.grad(
        (F.batch_norm(X, None, None, training=True) * X).sum(), X
    ),
    "attention, values only": lambda: torch.autograd.grad(
        F.scaled_dot_product_attention(X.detach(), X.detach(), X).sum(), X
    ),
    "lstm cell without bias": lambda: CELL(X[0]),
    "bag": lambda: F.embedding_bag(torch.zeros(2, 2, dtype=torch.long), X[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTLY)
def test_operators_with_undefined_results_replay(name: str) -> None:
    graph = SoftwareBackend().capture(PARTLY[name])
    graph.replay()
    expected = PARTLY[name]()
    for got, want in zip(graph.recording.result, expected, strict=True):
        assert torch.allclose(got, want, atol=1e-6)


ODD_LAYOUTS: dict[str, Any] = {
    "sparse memory": lambda x: torch.empty(3, layout=torch.sparse_coo),
    "sparse, of a number of the host": lambda x: torch.scalar_tensor(2.0).to_sparse(),
    "sparse, written": lambda x: x.to_sparse().mul_(2),
    "nested": lambda x: torch.nested.nested_tensor([x, x]) * 2,
    "nested, written": lambda x: torch.nested.nested_tensor([x, x]).mul_(2),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ODD_LAYOUTS)
def test_an_eager_run_with_tensors_of_other_layouts_is_recorded(name: str) -> None:
    x = torch.ones(3)

    def run() -> Any:
        ODD_LAYOUTS[name](x)
        return x + 1

    recording = SoftwareBackend().record(run)
    assert (recording.nodes or ())[-1].name == "aten::add"


class Marked(torch.Tensor):  # type: ignore[misc]  # torch is not followed
    """A subclass that leaves its operators to torch."""


class Weight(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter as serving engines have them, with attributes of their own."""


@pytest.mark.parametrize("make", [torch.Tensor.clone, lambda x: x.as_subclass(Marked), Weight])
def test_subclasses_that_leave_operators_to_torch_are_recorded(make: Any) -> None:
    weight, factor, x = make(torch.randn(3, 3)), [2], torch.randn(2, 3)

    def step(x: Any) -> Any:
        return x @ weight.data.detach() * factor[0] + weight.sum()

    def other() -> None:
        factor[0] = 3

    with torch.no_grad():
        assert_replay_equals_eager(step, [x], vary=[lambda: x.fill_(2)], backend="software")
        with pytest.raises(GraphCaptureError, match="frozen"):
            assert_replay_equals_eager(step, [x], vary=[other], backend="software")


def test_the_host_reads_no_subclass_within_a_capture() -> None:
    marked = torch.ones(3).as_subclass(Marked)
    with pytest.raises(CaptureFailedError, match="tolist"):
        SoftwareBackend().capture(lambda: marked.tolist())


def test_a_lazy_module_is_made_in_the_warm_up() -> None:
    module = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d()).eval()
    with torch.no_grad():
        assert_replay_equals_eager(module, [torch.randn(2, 4)], backend="software")
