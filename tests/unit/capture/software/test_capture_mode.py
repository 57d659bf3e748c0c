"""The software graph records each kind of operator without running it and replays it exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, ReplayFailedError  # noqa: E402

Fn = Callable[[Any], Any]


def _set(x: Any, where: Any, value: Any) -> Any:
    x = x.clone()
    x[where] = value
    return x


def _swap(x: Any) -> Any:
    x = x * 1
    x.t_()
    return x + 1


def _out_empty(x: Any) -> Any:
    out = torch.empty(0)
    torch.add(x, x, out=out)
    return out * 2


def _attention(x: Any) -> Any:
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def _max_out(x: Any) -> Any:
    return torch.max(x, 1, out=(torch.empty(4), torch.empty(4, dtype=torch.long)))[1]


def _split_in_place(x: Any) -> Any:
    x = x.clone()
    first, second = x.chunk(2)
    first.add_(second)
    second.copy_(first.flip(0))
    return x


def _views(x: Any) -> Any:
    y = x.clone().view(-1)[2:14].reshape(3, 4).t()[1:]
    y.mul_(2)
    return y.expand(2, 3, 3).contiguous().as_strided((3, 2), (1, 3))


OPS: dict[str, Fn] = {
    "add": lambda x: x + 1,
    "reflected": lambda x: 2 - x / 3,
    "matmul": lambda x: x @ x.t(),
    "batched matmul": lambda x: x.expand(3, 4, 4) @ x.expand(3, 4, 4).transpose(1, 2),
    "linear": lambda x: F.linear(x, x, x[0]),
    "conv": lambda x: F.conv1d(x[None], x[:, :, None].contiguous()),
    "sdpa": lambda x: _attention(x.view(1, 2, 4, 2)),
    "layer norm": lambda x: F.layer_norm(x, (4,), x[0], x[1]),
    "rms norm": lambda x: F.rms_norm(x, (4,)),
    "softmax": lambda x: x.softmax(-1),
    "gelu": lambda x: F.gelu(x),
    "cross entropy": lambda x: F.cross_entropy(x, x.argmax(1)),
    "embedding": lambda x: F.embedding(x.argmax(1), x),
    "views": _views,
    "chunks in place": _split_in_place,
    "in place": lambda x: x.clone().add_(1).relu_().mul_(x),
    "changes its own strides": _swap,
    "out=": lambda x: torch.mul(x, 2, out=torch.empty(4, 4)),
    "out= that is empty": _out_empty,
    "out= of two": _max_out,
    "set an item": lambda x: _set(x, 0, 5.0),
    "set a slice": lambda x: _set(x, slice(1, 3), x[:2]),
    "set by mask": lambda x: _set(x, x > 0, 0.5),
    "set by index": lambda x: _set(x, x.argmax(1), x * 2),
    "zeros": lambda x: torch.zeros(4) + x,
    "ones like": lambda x: torch.ones_like(x) + x,
    "full": lambda x: torch.full((4,), 3.0) * x,
    "arange": lambda x: torch.arange(4) + x,
    "eye": lambda x: torch.eye(4) + x,
    "linspace": lambda x: torch.linspace(0, 1, 4) + x,
    "new zeros": lambda x: x.new_zeros(4) + x,
    "empty, then filled": lambda x: torch.empty(4, 4).copy_(x) + 1,
    "a host number": lambda x: x * torch.tensor(2.0),
    "arithmetic of host numbers": lambda x: x * (torch.tensor(2.0) + torch.tensor(3.0)),
    "a host number that is written": lambda x: torch.tensor(2.0).add_(x.sum()) + x,
    "item of a host number": lambda x: x * torch.tensor(2.0).item(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked fill": lambda x: x.masked_fill(x > 0, float("-inf")),
    "clamp": lambda x: x.clamp(min=0, max=1),
    "foreach": lambda x: torch._foreach_add([x, x], 1.0)[1],
    "foreach in place": lambda x: _foreach_in_place(x),
    "top k": lambda x: x.topk(2),
    "sort": lambda x: x.sort(stable=True),
    "cumsum": lambda x: x.cumsum(0),
    "searchsorted": lambda x: torch.searchsorted(x[0].cumsum(0), x[1]),
    "gather": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "scatter": lambda x: x.scatter(1, x.argmax(1, keepdim=True), 0.0),
    "index add": lambda x: x.index_add(0, x.argmax(1), x),
    "index select": lambda x: x.index_select(0, x.argmax(1)),
    "index": lambda x: x[x.argmax(1)],
    "cat and split": lambda x: torch.cat(x.split(1, 1)[::-1], 1),
    "stack": lambda x: torch.stack([x, x * 2]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "bfloat16": lambda x: (x.bfloat16() @ x.bfloat16().t()).float(),
    "to a dtype": lambda x: x.to(torch.int32) // 2,
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 2, 2)).conj() * 2),
    "bool": lambda x: (x > 0).any(1),
    "reductions": lambda x: (x.sum(), x.mean(0), x.var(), x.amax(1), x.norm()),
    "repeat interleave": lambda x: torch.repeat_interleave(
        x, torch.ones(4).long(), dim=0, output_size=4
    ),
    "nonzero static": lambda x: torch.nonzero_static(x > 0, size=3),
    "one hot of known size": lambda x: F.one_hot(x.argmax(1), 4),
    "tril": lambda x: torch.tril(x),
    "roll": lambda x: x.roll(1, 0),
    "pad": lambda x: F.pad(x, (1, 1)),
    "unfold": lambda x: x.unfold(0, 2, 1) + 1,
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "nothing": lambda x: torch.zeros(0, 4) @ x,
    "a tensor as a number": lambda x: x * x.sum(),
    "float8": lambda x: x.to(torch.float8_e4m3fn).float(),
    "inverse": lambda x: torch.linalg.inv_ex(x)[0],
    "a module": lambda x: torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(-1))(x),
    "a dict of results": lambda x: {"a": x + 1, "b": [x * 2]},
}


def _foreach_in_place(x: Any) -> Any:
    found = [x.clone(), x.clone()]
    torch._foreach_mul_(found, [2.0, 3.0])
    torch._foreach_copy_(found[:1], found[1:])
    return found


def leaves(tree: Any) -> list[Any]:
    """The tensors of a result."""
    return list(torch.utils._pytree.tree_leaves(tree))


def same(left: Any, right: Any) -> bool:
    """Whether two results are the same to the bit, NaN included."""
    pairs = list(zip(leaves(left), leaves(right), strict=True))
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.isnan(), b.isnan())
        and torch.equal(a.nan_to_num(), b.nan_to_num())
        if a.dtype.is_floating_point
        else torch.equal(a, b)
        for a, b in pairs
    )  # fmt: skip


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", OPS)
def test_replays_equal_eager_on_new_contents(name: str, mode: Any) -> None:
    torch.manual_seed(0)
    fn, x = OPS[name], torch.randn(4, 4)
    before = x.clone()
    with mode():
        graph = SoftwareBackend().capture(lambda: fn(x))
        assert torch.equal(x, before)
        assert graph.findings == ()
        for _ in range(3):
            x.copy_(torch.randn(4, 4))
            for each in leaves(graph.recording.result):
                each.zero_()
            graph.replay()
            assert same(graph.recording.result, fn(x))


@pytest.mark.parametrize("name", OPS)
def test_nothing_runs_in_a_capture_and_what_comes_out_is_poison(name: str) -> None:
    graph = SoftwareBackend().capture(lambda: OPS[name](torch.ones(4, 4)))
    for each in leaves(graph.recording.result):
        if not each.numel():
            continue
        if each.dtype.is_floating_point or each.is_complex():
            assert each.isnan().all()
        elif each.dtype == torch.bool:
            assert each.all()
        else:
            assert (each > 2**5).all()


@pytest.mark.parametrize("name", OPS)
def test_the_nodes_of_a_warm_up_are_those_of_the_capture(name: str) -> None:
    backend, x = SoftwareBackend(), torch.randn(4, 4)
    eager = backend.record(lambda: OPS[name](x))
    assert same(eager.result, OPS[name](x))
    captured = backend.capture(lambda: OPS[name](x)).recording
    assert eager.nodes
    assert captured.nodes
    assert [each.name for each in eager.nodes] == [each.name for each in captured.nodes]
    assert [each.where for each in eager.nodes] == [each.where for each in captured.nodes]
    assert all(Path(__file__).name in each.where for each in captured.nodes)


def test_what_eager_code_cannot_do_fails_in_the_capture_in_the_same_words() -> None:
    x = torch.ones(4, 4)
    with pytest.raises(RuntimeError) as eager:
        x @ torch.ones(3, 3)
    with pytest.raises(RuntimeError) as captured:
        SoftwareBackend().capture(lambda: x @ torch.ones(3, 3))
    assert str(captured.value) == str(eager.value)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        SoftwareBackend().capture(lambda: torch.ones(4).add_(x))


def test_a_batch_norm_advances_its_statistics_at_each_replay() -> None:
    norm, x = torch.nn.BatchNorm1d(4), torch.randn(8, 4)
    other = torch.nn.BatchNorm1d(4)
    graph = SoftwareBackend().capture(lambda: norm(x))
    for _ in range(3):
        graph.replay()
        expected = other(x)
    assert torch.equal(graph.recording.result, expected)
    assert torch.equal(norm.running_mean, other.running_mean)
    assert norm.num_batches_tracked == 3
    written = [use for use in graph.recording.uses or () if use.writes and not use.owned]
    assert len(written) == 3


def test_a_tensor_in_place_from_outside_changes_at_replays_only() -> None:
    x = torch.zeros(3)
    graph = SoftwareBackend().capture(lambda: x.add_(1))
    assert graph.recording.result is x
    assert x.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2, 2]


def test_large_tensors_ask_the_meta_kernel() -> None:
    x = torch.randn(512, 512)
    graph = SoftwareBackend().capture(lambda: (x @ x).relu().sum(0))
    graph.replay()
    assert torch.equal(graph.recording.result, (x @ x).relu().sum(0))


class Tagged(torch.Tensor):  # type: ignore[misc, name-defined]  # torch is not followed
    """A tensor that wraps another one and says so at each operator."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each.inner if isinstance(each, Tagged) else each for each in args]
        return Tagged(op(*plain, **(kwargs or {})))


def test_tensor_subclasses_are_recorded_by_what_they_are_made_of() -> None:
    x = torch.randn(3)
    tagged: Any = Tagged
    graph = SoftwareBackend().capture(lambda: (tagged(x) * 2 + 1).inner)
    assert [node.name for node in graph.recording.nodes or ()] == ["aten::mul", "aten::add"]
    graph.replay()
    assert torch.equal(graph.recording.result, x * 2 + 1)


def test_an_assertion_on_the_device_is_checked_at_each_replay() -> None:
    flag = torch.tensor(True)
    graph = SoftwareBackend().capture(lambda: torch._assert_async(flag, "the flag is down"))
    nodes = graph.recording.nodes or ()
    assert [node.name for node in nodes] == ["aten::_assert_async"]
    graph.replay()
    flag.fill_(False)
    with pytest.raises(ReplayFailedError, match="the flag is down"):
        graph.replay()


_SPARSE = torch.eye(4).to_sparse()
REFUSED: dict[str, tuple[Fn, str]] = {
    "a number is read": (lambda x: x.sum().item(), "item() or bool(), int(), float()"),
    "a list becomes a tensor": (
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
        "makes a tensor from host data",
    ),
    "sparse, as an argument": (lambda x: _SPARSE @ x, "layout torch.sparse_coo"),
    "nested, as an argument": (
        lambda x: torch.nested.nested_tensor([x, x]) * 2,
        "a tensor of a nested layout",
    ),
    "sparse memory": (lambda x: torch.empty(3, layout=torch.sparse_coo), "layout torch.sparse_coo"),
    "a generator": (lambda x: torch.rand(3, generator=torch.Generator()), "of its own"),
    "it grows": (lambda x: x.clone().resize_(9, 9), "to other memory"),
    "out= grows": (lambda x: torch.add(x, x, out=torch.empty(1)), "to other memory"),
    "set by mask": (lambda x: _set(x, x > 0, torch.ones(3)), "x[mask] = value"),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_with_its_line(name: str) -> None:
    fn, words = REFUSED[name]
    x = torch.ones(4, 4)
    with pytest.raises(CaptureFailedError) as caught:
        SoftwareBackend().capture(lambda: fn(x))
    assert words in caught.value.finding.what
    assert Path(__file__).name in caught.value.finding.where


QUANTIZED: dict[str, Callable[[Any, Any], Any]] = {
    "a result": lambda x, q: torch.quantize_per_tensor(x, 0.5, 0, torch.qint8),
    "an argument": lambda x, q: q.dequantize(),
    "it is written": lambda x, q: q.copy_(x),
    "memory": lambda x, q: torch._empty_affine_quantized([4], scale=0.5, dtype=torch.qint8),
    "memory by type": lambda x, q: torch.empty(4, dtype=torch.qint8),
    "memory like it": lambda x, q: torch.empty_like(q),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_tensors_are_refused_as_not_judged(name: str) -> None:
    x = torch.ones(4, 4)
    quantized = torch.quantize_per_tensor(x, 0.5, 0, torch.qint8)
    with pytest.raises(CaptureFailedError) as caught:
        SoftwareBackend().capture(lambda: QUANTIZED[name](x, quantized))
    assert caught.value.finding.check == "not-judged"
    assert "a tensor of type torch.qint8" in caught.value.finding.what


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_an_eager_run_has_quantized_is_refused_where_a_meta_kernel_says_it_is_dense() -> None:
    x = torch.ones(300, 300)

    def fn() -> Any:
        return torch.quantize_per_tensor(x, 0.5, 0, torch.qint8)

    backend = SoftwareBackend()
    backend.record(fn)
    for _ in range(2):
        with pytest.raises(CaptureFailedError) as caught:
            backend.capture(fn)
        assert "a tensor of type torch.qint8" in caught.value.finding.what


def test_what_has_no_memory_is_computed_at_once() -> None:
    def fn() -> Any:
        shape = (torch.empty(3, 4, device="meta") @ torch.empty(4, 5, device="meta")).shape
        assert torch.zeros(2, device="meta").is_meta
        return torch.ones(shape)

    graph = SoftwareBackend().capture(fn)
    graph.replay()
    assert graph.recording.result.shape == (3, 5)


def test_resizing_within_its_memory_is_no_work() -> None:
    x = torch.arange(4.0)
    graph = SoftwareBackend().capture(lambda: x.clone().resize_(2) * 2)
    graph.replay()
    assert graph.recording.result.tolist() == [0, 2]
