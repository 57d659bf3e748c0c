"""Operators of torch, and the names by which the checks of graphs know them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.compat import require

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.compat.torch_graphs import operators  # noqa: E402

USED = {
    "_ops.OpOverload": "telling operators from higher-order operators",
    "_C.DispatchKeySet": "running the Python kernel of a custom operator",
    "_C.DispatchKey.CPU": "running the Python kernel of a custom operator",
    "_C.DispatchKey.CompositeExplicitAutograd": "running torch.cond and its kind",
    "_C.DispatchKey.CompositeImplicitAutograd": "taking operators apart that are made of others",
    "_C._AutoDispatchBelowAutograd": "running the Python kernel of a custom operator",
    "_C.DisableTorchFunction": "replays that no subclass of tensors sees",
    "_C.DispatchKey.CUDA": "running the Python kernel of a custom operator on a GPU",
    "ops._c10d_functional.wait_tensor": "waiting for functional collectives",
    "library._impls": "telling custom operators that are Python code",
}


@pytest.mark.parametrize("name", USED)
def test_torch_still_has_the_name(name: str) -> None:
    require("torch", torch, name, USED[name])


def test_some_kernels_still_ask_whether_a_mode_is_active() -> None:
    import importlib

    modules = [importlib.import_module(f"torch._higher_order_ops.{name}") for name in ("scan",)]
    assert any(hasattr(module, operators.MODE_CHECK) for module in modules), (
        f"torch {torch.__version__} no longer asks by {operators.MODE_CHECK!r}: the software "
        "graph has to let higher-order operators run in another way"
    )


def test_an_operator_and_its_schema() -> None:
    op = torch.ops.aten.add.Tensor
    assert isinstance(op, operators.OpOverload)
    assert operators.schema_of(op).name == "aten::add"
    assert operators.is_composite(torch.ops.aten.linear.default)
    assert not operators.is_composite(op)
    direct = op.redispatch(operators.CPU_KEYS, torch.ones(1), torch.ones(1))
    assert direct.item() == 2


def test_a_kernel_that_is_python_code() -> None:
    with torch.library._scoped_library("cudafork_compat", "DEF") as library:
        library.define("one(Tensor x) -> Tensor")
        library.define("other(Tensor x) -> Tensor")
        library.impl("one", lambda x: x + 1, "CPU")
        assert operators.has_python_kernel("cudafork_compat::one", "")
        assert not operators.has_python_kernel("cudafork_compat::one", "overload")
        assert not operators.has_python_kernel("cudafork_compat::other", "")


def test_the_python_code_of_a_higher_order_operator() -> None:
    assert callable(operators.python_kernel(torch.ops.higher_order.cond))
    assert operators.python_kernel(object()) is None


def test_autograd_and_subclasses_are_passed_by() -> None:
    x = torch.ones(1, requires_grad=True)
    with operators.below_autograd():
        assert not torch.ops.aten.mul.Tensor(x, x).requires_grad
    with operators.without_torch_function():
        assert type(torch.nn.Parameter(x) * 1) is torch.Tensor


@pytest.mark.skipif(not torch.distributed.is_available(), reason="a torch without distributed")
def test_work_that_is_done_can_be_waited_for() -> None:
    operators.finished_work().wait()
