"""Arguments of operators as what was read and what was written."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.arguments import Arguments  # noqa: E402
from pytest_cudafork.capture.record.history import History  # noqa: E402
from pytest_cudafork.capture.record.values import Place, Read  # noqa: E402


def taken(op: Any, *args: Any, **kwargs: Any) -> tuple[Arguments, History]:
    history = History()
    made = Arguments(history, history.operators(op))
    made.take_all(args, kwargs)
    return made, history


def test_tensors_are_read_or_written_and_the_rest_stays() -> None:
    x, out = torch.ones(2), torch.zeros(2)
    made, history = taken(torch.ops.aten.add.out, x, 2, alpha=1, out=out)
    assert isinstance(made.args[0], Read)
    assert made.args[1] == 2
    assert isinstance(made.kwargs["out"], Place)
    assert [memory for memory, _, _ in made.targets] == [history.memories.get(out)]
    assert [read.memory for read in made.reads] == [history.memories.get(x)]
    assert made.followed


def test_lists_are_walked_and_shapes_are_not_read() -> None:
    x = torch.ones(2)
    made, _ = taken(torch.ops.aten.cat.default, [x, x], 0)
    assert [type(each) for each in made.args[0]] == [Read, Read]
    made, _ = taken(torch.ops.aten.zeros_like.default, x)
    assert made.reads == []
    made, _ = taken(torch.ops.aten.add.Tensor, x.to_sparse(), x)
    assert not made.followed


def test_what_is_read_and_written_by_one_call_is_marked() -> None:
    x = torch.arange(3)
    made, _ = taken(torch.ops.aten.copy_.default, x, x.view(3))
    assert [read.written for read in made.reads] == [True]
    assert made.args[1].written


def test_small_memory_of_the_host_is_kept_when_it_is_first_met() -> None:
    x = torch.tensor([1, 2])
    made, history = taken(torch.ops.aten.add.Tensor, x, 1)
    (write,) = made.reads[0].writes
    x.fill_(9)
    assert write.operation.run is not None
    assert write.operation.run().tolist() == [1, 2]
    assert history.memories.get(x) is made.reads[0].memory
    large, _ = taken(torch.ops.aten.add.Tensor, torch.zeros(5000), 1)
    assert large.reads[0].writes == ()
