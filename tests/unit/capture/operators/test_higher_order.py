"""Operators that are made of functions, under each dispatch mode of this package."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.operators.higher_order import OperatorWatch, seen_inside  # noqa: E402
from pytest_cudafork.compat.torch_graphs.modes import DispatchMode  # noqa: E402
from pytest_cudafork.compat.torch_graphs.operators import MODE_CHECK  # noqa: E402


class Names(DispatchMode):
    """Lists the operators that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(op))
        run = seen_inside(op, self)
        return (run or op)(*args, **(kwargs or {}))


def up(x: Any) -> Any:
    return x + 1


def down(x: Any) -> Any:
    return x.sub(1)


def test_each_operator_in_it_is_seen() -> None:
    with Names() as names:
        result = torch.ops.higher_order.cond(torch.tensor(False), up, down, (torch.ones(2),))
    assert result.tolist() == [0, 0]
    assert [
        name for name in names.seen if name in ("cond", "aten.add.Tensor", "aten.sub.Tensor")
    ] == [
        "cond",
        "aten.sub.Tensor",
    ]
    reads = {"aten._local_scalar_dense.default", "aten.is_nonzero.default"}
    assert reads & set(names.seen), "the branch waits for a value"


def test_what_insists_on_that_no_mode_is_active_runs_and_asks_as_before_afterwards() -> None:
    module = pytest.importorskip("torch._higher_order_ops.scan")
    before = getattr(module, MODE_CHECK, None)

    def add(carry: Any, x: Any) -> tuple[Any, Any]:
        return carry + x, (carry + x).clone()

    with Names() as names:
        found = torch.ops.higher_order.scan(add, [torch.zeros(2)], [torch.ones(3, 2)], ())
    assert found[0].tolist() == [3, 3]
    assert names.seen.count("aten.clone.default") >= 3
    assert getattr(module, MODE_CHECK, None) is before


def test_one_without_python_code_is_told() -> None:
    assert seen_inside(object(), Names()) is None


def test_a_watch_is_handed_each_operator_with_what_it_got_and_gave() -> None:
    seen: dict[str, tuple[Any, Any, Any]] = {}

    def see(op: Any, args: Any, kwargs: Any, result: Any) -> None:
        seen[str(op)] = (args, kwargs, result)

    ones = torch.ones(2)
    with OperatorWatch(see):
        result = torch.ops.higher_order.cond(torch.tensor(False), up, down, (ones,))
        full = torch.full((2,), 7.0)
    assert "cond" not in seen, "it is seen by its parts"
    args, _, given = seen["aten.sub.Tensor"]
    assert (args[0].tolist(), args[1], given.tolist()) == ([1, 1], 1, result.tolist())
    args, kwargs, given = seen["aten.full.default"]
    assert (args, given.tolist()) == (([2], 7.0), full.tolist())
    assert "device" in kwargs
