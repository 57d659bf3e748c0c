"""Tensors on "cuda" by the name of a type, and wrappers that subclasses make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing.random_numbers import Generator  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors import typed_tensors  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.compat.torch_graphs.tensors import WRAPPERS  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError, GraphNotJudgedError  # noqa: E402
from pytest_cudafork.observe.base.undo import UndoStack  # noqa: E402
from pytest_cudafork.observe.torch.rows import MAKE  # noqa: E402

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def in_place() -> Iterator[None]:
    with UndoStack() as undo, CudaTensors():
        typed_tensors.put_in_place(undo)
        yield
    assert not hasattr(torch.cuda, MAKE)
    assert WRAPPERS not in vars(torch.Tensor)


class Scaled(torch.Tensor):  # type: ignore[misc, name-defined]
    """Numbers beside a scale, as quantized weights are kept."""

    @staticmethod
    def __new__(cls: Any, numbers: Any, scale: Any) -> Any:
        made = getattr(torch.Tensor, WRAPPERS)(
            cls, numbers.shape, dtype=scale.dtype, device=numbers.device
        )
        made.numbers, made.scale = numbers, scale
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale)
        plain = [each.numbers * each.scale if isinstance(each, cls) else each for each in args]
        return func(*plain, **(kwargs or {}))


class Weight(torch.nn.Parameter):  # type: ignore[misc, name-defined]
    """A parameter that knows how it is loaded, as engines have them."""

    def __new__(cls, data: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, data=data, requires_grad=False)

    def __init__(self, data: Any, dim: int) -> None:
        self.dim_of_shards = dim

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})

    def load(self, part: Any) -> None:
        self.data.narrow(self.dim_of_shards, 0, part.shape[self.dim_of_shards]).copy_(part)


class Linear4(torch.Tensor):  # type: ignore[misc, name-defined]
    """Weights that compute ``linear`` themselves, in memory that they make where the input lies."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear:
            return super().__torch_function__(func, types, args, kwargs or {})
        x, weight = args[:2]
        assert x.device == GPU
        made = torch.empty(len(x), len(weight), device="cuda")
        return made.copy_(x @ weight.as_subclass(torch.Tensor).T)


class Around(torch.Tensor):  # type: ignore[misc, name-defined]
    """A wrapper whose results are wrappers."""

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:
        return getattr(torch.Tensor, WRAPPERS)(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each.inner if isinstance(each, cls) else each for each in args]
        return cls(func(*plain, **(kwargs or {})))


def scaled(device: str) -> Any:
    return Scaled(
        torch.ones(4, 4, dtype=torch.int8, device=device), torch.tensor(2.0, device=device)
    )


@pytest.mark.parametrize("name", ["torch.cuda.LongTensor", torch.cuda.LongTensor])
def test_a_type_names_a_place_too(name: Any) -> None:
    there = torch.ones(2).type(name)
    assert (there.device, there.dtype) == (GPU, torch.int64)
    assert there.type() == "torch.cuda.LongTensor"
    assert there.type(torch.half).type() == "torch.cuda.HalfTensor"
    assert there.type(torch.cuda.LongTensor) is there
    assert torch.ones(1, device="cuda:1").type(name).device.index == 1
    for host in ("torch.FloatTensor", torch.FloatTensor):
        assert there.type(host).device.type == "cpu"
        assert there.type(host).dtype is torch.float32
    assert torch.ones(2).type() == "torch.FloatTensor"
    with pytest.raises(ValueError, match="invalid type"):
        there.type("torch.cuda.NoTensor")
    with pytest.raises(ValueError, match="invalid type"):
        there.type("torch.NoTensor")
    with pytest.raises(GraphNotJudgedError, match="sparse"):
        there.type("torch.cuda.sparse.FloatTensor")


def test_a_capture_refuses_a_type_that_moves_a_tensor() -> None:
    there, host = torch.ones(2, device="cuda"), torch.ones(2)
    for tensor, name, words in (
        (host, "torch.cuda.FloatTensor", "from host data"),
        (there, "torch.LongTensor", "on the host"),
    ):
        made = graphs.CUDAGraph()
        with pytest.raises(CaptureFailedError, match=words), graphs.graph(made):
            tensor.type(name)


def test_types_make_tensors_there() -> None:
    def make(*args: Any) -> Any:
        return typed_tensors.make("torch.cuda.FloatTensor", args, None)

    for made, shape in (
        (make([1.0, 2.0]), (2,)),
        (make(2, 3), (2, 3)),
        (make(torch.Size([2])), (2,)),
        (make(), (0,)),
        (make(make(2)), (2,)),
    ):
        assert (made.device, made.dtype, made.shape) == (GPU, torch.float32, shape)
    with pytest.raises(TypeError, match=r"expected torch.cuda.FloatTensor"):
        make(torch.ones(2))
    with pytest.raises(GraphNotJudgedError, match="FloatTensor"):
        make(object())
    generator = typed_tensors.make("torch.Generator", (), {"device": "cuda:1"})
    assert isinstance(generator, Generator)
    assert generator.device.index == 1
    assert typed_tensors.make("torch.cuda.sparse.FloatTensor", (), None) is None


def test_a_default_type_is_refused_by_name_and_with_what_to_do_instead() -> None:
    for name in ("torch.cuda.FloatTensor", torch.cuda.FloatTensor):
        with pytest.raises(GraphNotJudgedError, match="set_default_device"):
            torch.set_default_tensor_type(name)
    with pytest.warns(UserWarning, match="deprecated"):
        torch.set_default_tensor_type(torch.FloatTensor)


def test_a_wrapper_lies_where_it_says_and_so_do_results() -> None:
    there, x = scaled("cuda"), torch.ones(2, 4, device="cuda")
    assert (there.device, there.is_cuda) == (GPU, True)
    assert (x @ there).device == GPU
    assert "cpu" in str(scaled("cpu").device)
    layer = torch.nn.Linear(4, 4, bias=False, device="cuda")
    layer.weight = torch.nn.Parameter(there, requires_grad=False)
    assert (layer.weight.device, type(layer.weight.data)) == (GPU, Scaled)
    graph = graphs.CUDAGraph()
    layer(x)
    with graphs.graph(graph):
        out = layer(x)
    x.fill_(2)
    graph.replay()
    assert out.is_cuda
    assert out.tolist() == [[16.0] * 4] * 2


def test_parameters_of_a_class_of_their_own_lie_there() -> None:
    weight = Weight(torch.zeros(4, 4, device="cuda"), dim=0)
    weight.load(torch.ones(4, 4))
    module = torch.nn.Module()
    module.register_parameter("weight", weight)
    module.to("cuda")
    assert weight.device == weight.data.device == GPU
    x, graph = torch.ones(2, 4, device="cuda"), graphs.CUDAGraph()
    with graphs.graph(graph):
        out = torch.nn.functional.linear(x, module.weight)
    graph.replay()
    assert out.tolist() == [[4.0] * 4] * 2


def test_a_function_of_a_subclass_is_told_where_tensors_lie_and_makes_others_there() -> None:
    weight = torch.ones(4, 4, device="cuda").as_subclass(Linear4)
    x, graph = torch.ones(2, 4, device="cuda"), graphs.CUDAGraph()
    with graphs.graph(graph):
        out = torch.nn.functional.linear(x, weight)
    x.fill_(2)
    graph.replay()
    assert out.is_cuda
    assert out.tolist() == [[8.0] * 4] * 2
    assert (weight + 1).is_cuda
    assert torch.get_device(weight) == 0


def test_what_lies_in_the_wrappers_of_results_lies_there_too() -> None:
    there: Any = Around(torch.ones(2, device="cuda"))
    host: Any = Around(torch.ones(2))
    made = there + 1
    assert type(made) is Around
    assert made.is_cuda
    assert made.inner.is_cuda
    assert made.inner.tolist() == [2, 2]
    assert not (host + 1).inner.is_cuda
