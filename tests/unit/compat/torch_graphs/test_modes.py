"""Modes of torch, those of other threads among them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.compat import require

torch: Any = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pytest_cudafork.compat.torch_graphs import functions, modes  # noqa: E402
from pytest_cudafork.compat.torch_internals import release  # noqa: E402
from tests.support import interpreters  # noqa: E402

USED = {
    "utils._python_dispatch.TorchDispatchMode": "seeing operators",
    "utils._python_dispatch._get_current_dispatch_mode_stack": "refusing a capture in a capture",
    "_C._DisableTorchDispatch": "computing again what nobody is to see",
    "_subclasses.fake_tensor.FakeTensor": "letting fake tensors pass",
    "_subclasses.functional_tensor.FunctionalTensor": "letting functional tensors pass",
    "_C._len_torch_dispatch_stack": "seeing operators of other threads",
    "_C._push_on_torch_dispatch_stack": "seeing operators of other threads",
    "_C._pop_torch_dispatch_stack": "seeing operators of other threads",
    "_C._get_dispatch_stack_at": "seeing operators of other threads",
    "_C._dynamo.eval_frame.set_code_exec_strategy": "not compiling what looks on",
    "_C._dynamo.eval_frame._FrameExecStrategy": "not compiling what looks on",
    "_C._dynamo.eval_frame._FrameAction.SKIP": "not compiling what looks on",
    "_C._TorchDispatchModeKey.PROXY": "not judging what is traced within a capture",
    "_C._TorchDispatchModeKey.FAKE": "leaving fake tensors alone",
    "_C._get_dispatch_mode": "not judging what is traced within a capture",
    "overrides._get_current_function_mode_stack": "knowing where tensors lie and are made",
    "utils._device.DeviceContext": "knowing where a number is made",
    "utils._device._device_constructors": "leaving torch's list of functions as it is",
}


@pytest.mark.parametrize("name", USED)
def test_torch_still_has_the_name(name: str) -> None:
    require("torch", torch, name, USED[name])


OF_MODES = ("_should_skip_dynamo", "is_infra_mode", "ignore_compile_internals")


not_in_2_8 = pytest.mark.skipif(release() < (2, 9), reason="torch 2.8 does not ask")


@not_in_2_8
@pytest.mark.parametrize("name", OF_MODES)
def test_torch_still_asks_a_mode(name: str) -> None:
    needed_for = "modes that do not make torch import its compiler"
    require("torch", TorchDispatchMode, name, needed_for)


@not_in_2_8
def test_a_mode_still_may_handle_higher_order_operators() -> None:
    mode = TorchDispatchMode
    require("torch", mode, "supports_higher_order_operators", "seeing into torch.cond")


class Seen(modes.DispatchMode):
    """Notes the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(op)
        return op(*args, **(kwargs or {}))


def test_a_mode_is_pushed_and_popped() -> None:
    mode = Seen()
    x = torch.ones(1)
    assert (modes.count_modes(), list(modes.active_modes())) == (0, [])
    modes.push_mode(mode)
    try:
        x + x
        assert modes.count_modes() == 1
        assert modes.mode_at(0) is mode
        assert list(modes.active_modes()) == [mode]
    finally:
        modes.pop_mode()
    x + x
    assert mode.ops == [torch.ops.aten.add.Tensor]


def test_an_operator_below_a_mode_does_not_import_the_compiler(tmp_path: Path) -> None:
    script = """
import sys
import torch
from pytest_cudafork.compat.torch_graphs.modes import DispatchMode

class Seen(DispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        print(op)
        return op(*args, **(kwargs or {}))

with Seen():
    torch.ones(1)
print("torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    done = interpreters.run(command, cwd=tmp_path, timeout=240)
    assert done.stdout.split() == ["aten.ones.default", "False"], done


def of_the_mode(op: Any) -> Any:
    return op


class CallsOthers(modes.DispatchMode):
    """Does its work by a function of the test's module."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return of_the_mode(op)(*args, **(kwargs or {}))


def test_what_a_mode_does_is_not_compiled_where_a_compiled_function_breaks_its_graph() -> None:
    def of_the_test(y: torch.Tensor) -> torch.Tensor:
        return y + y

    def left_to_python(y: torch.Tensor) -> torch.Tensor:
        return of_the_test(y)

    in_python = torch._dynamo.disable(left_to_python, recursive=False)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        z: torch.Tensor = in_python(y)
        torch._dynamo.graph_break()
        return z * 2

    from torch._dynamo import convert_frame

    with CallsOthers():
        result = torch.compile(function, backend="eager")(torch.ones(2))
    assert result.tolist() == [8.0, 8.0]
    known = convert_frame.input_codes
    for each in (CallsOthers.__torch_dispatch__, of_the_mode):
        assert each.__code__ not in known, each
    assert of_the_test.__code__ in known  # so that what is called there is looked at


def test_a_mark_of_the_profiler_passes_no_mode() -> None:
    with Seen() as mode, functions.profiler_mark("a mark"):
        pass
    assert mode.ops == []


def test_a_device_that_is_set_is_known() -> None:
    assert not modes.is_device_set()
    with torch.device("cpu"):
        assert modes.is_device_set()
    assert not modes.is_device_set()


def test_functions_that_make_tensors_are_listed_before_they_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modes.know_functions_that_make_tensors()
    made = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *args: made(*args))
    with torch.device("meta"):
        assert torch.tensor(1.0).is_meta


def test_tracing_and_fake_tensors_are_told() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    seen = []

    def fn(x: Any) -> Any:
        seen.append((modes.is_traced(), modes.has_fake_tensors()))
        return x + 1

    fn(torch.ones(2))
    with FakeTensorMode():
        fn(torch.ones(2))
    make_fx(fn)(torch.ones(2))
    assert [traced for traced, _ in seen] == [False, False, True]
    assert [fake for _, fake in seen[:2]] == [False, True]


def test_tensors_that_handle_operators_are_told_from_others() -> None:
    class Plain(torch.Tensor):  # type: ignore[misc]  # torch is not followed
        pass

    class Own(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return NotImplemented

    plain = (torch.Tensor, torch.nn.Parameter, Plain, torch.nn.parameter.UninitializedParameter)
    assert [modes.handles_operators(each) for each in (*plain, Own)] == [False] * 4 + [True]
