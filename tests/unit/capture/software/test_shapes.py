"""What results an operator has is known without running it on the arguments."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.operators.traits import traits_of  # noqa: E402
from pytest_cudafork.capture.software.shapes import (  # noqa: E402
    NotDenseError,
    Shapes,
    Spec,
    map_tensors,
    signature,
)
from pytest_cudafork.compat.torch_graphs.operators import finished_work  # noqa: E402

aten = torch.ops.aten


def ask(op: Any, *args: Any, shapes: Shapes | None = None, **kwargs: Any) -> Any:
    """The results of a call, by a cache of its own unless one is given."""
    shapes = Shapes() if shapes is None else shapes
    found: list[Any] = []
    key = signature(args, found), signature(kwargs.values(), found)
    return shapes(op, traits_of(op), args, kwargs, key)


def test_shape_strides_and_type_of_a_result() -> None:
    answer = ask(aten.mm.default, torch.ones(2, 3), torch.ones(3, 4))
    assert answer.results == Spec((2, 4), (4, 1), torch.float32, 32)
    assert answer.resized == ()


def test_a_large_call_is_answered_without_memory() -> None:
    big = torch.empty_strided((1 << 20, 1 << 10), (0, 0))
    answer = ask(aten.add.Tensor, big, big)
    assert answer.results.shape == (1 << 20, 1 << 10)


def test_several_results_keep_their_structure() -> None:
    values, indexes = ask(aten.topk.default, torch.ones(5), 2).results
    assert (values.shape, values.dtype) == ((2,), torch.float32)
    assert indexes.dtype == torch.int64
    parts = ask(aten.split.Tensor, torch.ones(5), 2).results
    assert [one.shape for one in parts] == [(2,), (2,), (1,)]


def test_an_output_that_grows_is_told() -> None:
    out = torch.empty(0)
    answer = ask(aten.add.out, torch.ones(3), torch.ones(3), out=out)
    assert [(index, spec.shape) for index, spec in answer.resized] == [(0, (3,))]
    assert out.numel() == 0, "the argument itself is left alone"


def test_the_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = Shapes()
    first = ask(aten.mm.default, torch.ones(2, 3), torch.ones(3, 4), shapes=shapes)
    monkeypatch.setattr(shapes, "_ask", None)
    assert ask(aten.mm.default, torch.ones(2, 3), torch.ones(3, 4), shapes=shapes) is first


def test_random_numbers_are_not_used_up() -> None:
    before = torch.default_generator.get_state()
    ask(aten.rand.default, [4], device=torch.device("cpu"), pin_memory=False)
    ask(aten.bernoulli.default, torch.ones(4))
    assert torch.equal(before, torch.default_generator.get_state())


def test_what_eager_code_refuses_is_refused_in_its_words() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ask(aten.mm.default, torch.ones(2, 3), torch.ones(2, 3))


def test_a_result_of_another_layout_is_named() -> None:
    with pytest.raises(NotDenseError, match="sparse"):
        ask(aten.to_sparse.default, torch.ones(2, 2))


def test_tensors_in_nested_lists_are_changed() -> None:
    one = torch.ones(1)
    assert map_tensors(lambda tensor: tensor.item(), [one, (one, 2), "x"]) == [1.0, [1.0, 2], "x"]


def test_a_signature_tells_types_of_numbers_apart() -> None:
    found: list[Any] = []
    assert signature((1, [torch.ones(2)]), found) != signature((1.0, [torch.ones(2)]), found)
    assert len(found) == 2


def test_sparse_tensors_have_a_signature_without_strides() -> None:
    dense, sparse = torch.eye(3), torch.eye(3).to_sparse()
    found: list[Any] = []
    assert signature([sparse], found) == ((sparse.shape, torch.sparse_coo, torch.float32),)
    assert signature([dense], found) != signature([sparse], found)
    assert len(found) == 3


def test_an_argument_that_may_hold_a_process_group_is_not_kept() -> None:
    key = signature([finished_work()], [])
    with pytest.raises(TypeError, match="unhashable"):
        hash(key)
