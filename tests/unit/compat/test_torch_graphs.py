"""Names of torch that checks of graphs use."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.compat import require

torch: Any = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pytest_cudafork.compat import torch_graphs  # noqa: E402
from pytest_cudafork.compat.torch_internals import release  # noqa: E402
from tests.support import interpreters  # noqa: E402

USED = {
    "_ops.OpOverload": "telling operators from higher-order operators",
    "utils._python_dispatch.TorchDispatchMode": "seeing operators",
    "utils._python_dispatch._get_current_dispatch_mode_stack": "refusing a capture in a capture",
    "_C.DispatchKeySet": "running the Python kernel of a custom operator",
    "_C.DispatchKey.CPU": "running the Python kernel of a custom operator",
    "_C.DispatchKey.CompositeExplicitAutograd": "running torch.cond and its kind",
    "_C.DispatchKey.CompositeImplicitAutograd": "taking operators apart that are made of others",
    "_C._AutoDispatchBelowAutograd": "running the Python kernel of a custom operator",
    "_foreach_copy_": "judging copies of lists between host and device",
    "serialization._package_registry": "saving tensors that stand for a GPU's",
    "_C._group_tensors_by_device_and_dtype": "clipping gradients that stand for a GPU's",
    "_C.DisableTorchFunction": "replays that no subclass of tensors sees",
    "_C._DisableTorchDispatch": "computing again what nobody is to see",
    "_C.DispatchKey.CUDA": "running the Python kernel of a custom operator on a GPU",
    "_subclasses.fake_tensor.FakeTensor": "letting fake tensors pass",
    "_subclasses.functional_tensor.FunctionalTensor": "letting functional tensors pass",
    "_C._len_torch_dispatch_stack": "seeing operators of other threads",
    "_C._push_on_torch_dispatch_stack": "seeing operators of other threads",
    "_C._pop_torch_dispatch_stack": "seeing operators of other threads",
    "_C._get_dispatch_stack_at": "seeing operators of other threads",
    "_C._dynamo.eval_frame.set_code_exec_strategy": "not compiling what looks on",
    "_C._dynamo.eval_frame._FrameExecStrategy": "not compiling what looks on",
    "_C._dynamo.eval_frame._FrameAction.SKIP": "not compiling what looks on",
    "_C._profiler._RecordFunctionFast": "the lines of a warm-up's kernels",
    "_C._TorchDispatchModeKey.PROXY": "not judging what is traced within a capture",
    "_C._TorchDispatchModeKey.FAKE": "leaving fake tensors alone",
    "_C._get_dispatch_mode": "not judging what is traced within a capture",
    "overrides._get_current_function_mode_stack": "knowing where tensors lie and are made",
    "utils._device.DeviceContext": "knowing where a number is made",
    "utils._device._device_constructors": "leaving torch's list of functions as it is",
    "ops._c10d_functional.wait_tensor": "waiting for functional collectives",
    "_conj": "replays on conjugated tensors",
    "_neg_view": "replays on negated tensors",
    "library._impls": "telling custom operators that are Python code",
    "UntypedStorage._new_with_weak_ptr": "noticing memory that is freed",
    "multiprocessing.reductions.StorageWeakRef": "noticing memory that is freed",
    "cuda._is_in_bad_fork": "saying why there can be no CUDA graph",
    "cuda._device_count_nvml": "saying why there can be no CUDA graph",
}
OF_CUDA_BUILDS = {
    "_C._has_Standard_Deleter": "telling memory of torch from that of others",
    "_C._host_emptyCache": "leaving no memory of the host behind with each capture",
    "_C._cuda_endAllocateToPool": "putting the allocator back where a capture failed",
}
OF_MODES = ("_should_skip_dynamo", "is_infra_mode", "ignore_compile_internals")


@pytest.mark.parametrize("name", USED)
def test_torch_still_has_the_name(name: str) -> None:
    require("torch", torch, name, USED[name])


@pytest.mark.parametrize("name", OF_CUDA_BUILDS)
@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
def test_torch_built_with_cuda_still_has_the_name(name: str) -> None:
    require("torch", torch, name, OF_CUDA_BUILDS[name])


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


def test_an_optimizer_still_refuses_a_capture() -> None:
    names = [name for name in torch_graphs.OPTIMIZER_CHECKS if hasattr(torch.optim.Optimizer, name)]
    assert names, (
        f"torch {torch.__version__} has none of {torch_graphs.OPTIMIZER_CHECKS} in its optimizers: "
        "the software graph has to refuse capturable=False in another place"
    )


def test_some_kernels_still_ask_whether_a_mode_is_active() -> None:
    import importlib

    modules = [importlib.import_module(f"torch._higher_order_ops.{name}") for name in ("scan",)]
    assert any(hasattr(module, torch_graphs.MODE_CHECK) for module in modules), (
        f"torch {torch.__version__} no longer asks by {torch_graphs.MODE_CHECK!r}: the software "
        "graph has to let higher-order operators run in another way"
    )


def test_an_operator_and_its_schema() -> None:
    op = torch.ops.aten.add.Tensor
    assert isinstance(op, torch_graphs.OpOverload)
    assert torch_graphs.schema_of(op).name == "aten::add"
    assert torch_graphs.is_composite(torch.ops.aten.linear.default)
    assert not torch_graphs.is_composite(op)
    direct = op.redispatch(torch_graphs.CPU_KEYS, torch.ones(1), torch.ones(1))
    assert direct.item() == 2


def test_a_kernel_that_is_python_code() -> None:
    with torch.library._scoped_library("cudafork_compat", "DEF") as library:
        library.define("one(Tensor x) -> Tensor")
        library.define("other(Tensor x) -> Tensor")
        library.impl("one", lambda x: x + 1, "CPU")
        assert torch_graphs.has_python_kernel("cudafork_compat::one", "")
        assert not torch_graphs.has_python_kernel("cudafork_compat::one", "overload")
        assert not torch_graphs.has_python_kernel("cudafork_compat::other", "")


def test_the_python_code_of_a_higher_order_operator() -> None:
    assert callable(torch_graphs.python_kernel(torch.ops.higher_order.cond))
    assert torch_graphs.python_kernel(object()) is None


class Seen(torch_graphs.DispatchMode):
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
    assert (torch_graphs.count_modes(), list(torch_graphs.active_modes())) == (0, [])
    torch_graphs.push_mode(mode)
    try:
        x + x
        assert torch_graphs.count_modes() == 1
        assert torch_graphs.mode_at(0) is mode
        assert list(torch_graphs.active_modes()) == [mode]
    finally:
        torch_graphs.pop_mode()
    x + x
    assert mode.ops == [torch.ops.aten.add.Tensor]


def test_an_operator_below_a_mode_does_not_import_the_compiler(tmp_path: Path) -> None:
    script = """
import sys
import torch
from pytest_cudafork.compat.torch_graphs import DispatchMode

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


class CallsOthers(torch_graphs.DispatchMode):
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
    with Seen() as mode, torch_graphs.profiler_mark("a mark"):
        pass
    assert mode.ops == []


def test_autograd_and_subclasses_are_passed_by() -> None:
    x = torch.ones(1, requires_grad=True)
    with torch_graphs.below_autograd():
        assert not torch.ops.aten.mul.Tensor(x, x).requires_grad
    with torch_graphs.without_torch_function():
        assert type(torch.nn.Parameter(x) * 1) is torch.Tensor


def test_a_storage_is_known_by_its_identity_and_found_while_it_lives() -> None:
    x = torch.ones(4)
    storage = x.untyped_storage()
    assert torch_graphs.identity_of(storage) == torch_graphs.identity_of(x[1:].untyped_storage())
    weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
    assert torch_graphs.storage_behind(weak).data_ptr() == x.data_ptr()
    del x, storage
    assert torch_graphs.storage_behind(weak) is None


def test_changes_in_place_are_counted() -> None:
    x = torch.ones(1)
    before = torch_graphs.version_of(x)
    x.add_(1)
    assert torch_graphs.version_of(x) > before
    with torch.inference_mode():
        assert torch_graphs.version_of(torch.ones(1)) == -1


def test_views_with_their_bits() -> None:
    x = torch.ones(1, dtype=torch.complex64)
    assert torch_graphs.conjugated(x).is_conj()
    assert torch_graphs.negated(x).is_neg()


def test_zeros_without_memory_are_told_from_tensors_with_some() -> None:
    assert torch_graphs.has_no_storage(torch._efficientzerotensor((2,)))
    assert not torch_graphs.has_no_storage(torch.zeros(2))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="a torch without distributed")
def test_work_that_is_done_can_be_waited_for() -> None:
    torch_graphs.finished_work().wait()


def test_memory_counts_as_torchs_where_torch_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_has_Standard_Deleter", lambda _: False, raising=False)
    assert not torch_graphs.is_freed_by_torch(torch.ones(1).untyped_storage())
    monkeypatch.delattr(torch._C, "_has_Standard_Deleter")
    assert torch_graphs.is_freed_by_torch(torch.ones(1).untyped_storage())


def test_what_torch_says_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not torch_graphs.is_in_bad_fork()
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 3)
    assert torch_graphs.visible_gpus() == 3
    monkeypatch.delattr(torch.cuda, "_device_count_nvml")
    assert torch_graphs.visible_gpus() == -1


def test_the_allocator_leaves_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda *args: left.append(args), raising=False
    )
    torch_graphs.leave_pool(0, (0, 1))
    assert left == [(0, (0, 1))]


def test_a_tensor_around_another_has_no_storage() -> None:
    class Around(torch.Tensor):  # type: ignore[misc, unused-ignore]
        @classmethod
        def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
            return NotImplemented

    wrapped = torch.Tensor._make_wrapper_subclass(Around, (2,))
    assert torch_graphs.has_no_storage(wrapped)
    assert not torch_graphs.has_no_storage(torch.nn.Parameter(torch.zeros(2)))


def test_what_functional_transforms_wrap_is_unwrapped() -> None:
    x, seen = torch.ones(2), []

    def f(x: Any) -> Any:
        seen.append(torch_graphs.unwrapped(x))
        return x.sum()

    torch.func.vmap(torch.func.grad(f))(x[None])
    assert seen[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch_graphs.unwrapped(x) is x


def test_a_device_that_is_set_is_known() -> None:
    assert not torch_graphs.is_device_set()
    with torch.device("cpu"):
        assert torch_graphs.is_device_set()
    assert not torch_graphs.is_device_set()


def test_functions_that_make_tensors_are_listed_before_they_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch_graphs.know_functions_that_make_tensors()
    made = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *args: made(*args))
    with torch.device("meta"):
        assert torch.tensor(1.0).is_meta


def test_marks_of_nvtx_go_by_the_name_that_is_replaced() -> None:
    assert hasattr(torch.cuda.nvtx, torch_graphs.MARKS), (
        f"torch {torch.__version__} has no torch.cuda.nvtx.{torch_graphs.MARKS}: on the software "
        "graph marks raise again"
    )
    if not torch.backends.cuda.is_built():
        assert torch_graphs.raises_for_marks(torch.cuda.nvtx)
    assert not torch_graphs.raises_for_marks(SimpleNamespace(_nvtx=torch_graphs.NoMarks()))


@pytest.mark.parametrize("name", torch_graphs.TRACERS)
def test_torch_still_traces_by_these_functions(name: str) -> None:
    assert callable(getattr(torch.jit, name, None)), (
        f"torch {torch.__version__} has no torch.jit.{name}: a look at captures steps aside while "
        "it traces, and needs the name that takes its place, if there is one"
    )


def test_tracing_and_fake_tensors_are_told() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    seen = []

    def fn(x: Any) -> Any:
        seen.append((torch_graphs.is_traced(), torch_graphs.has_fake_tensors()))
        return x + 1

    fn(torch.ones(2))
    with FakeTensorMode():
        fn(torch.ones(2))
    make_fx(fn)(torch.ones(2))
    assert [traced for traced, _ in seen] == [False, False, True]
    assert [fake for _, fake in seen[:2]] == [False, True]


def test_places_of_saved_tensors_are_asked_and_put_in_order() -> None:
    entries = torch_graphs.places_of_saved()
    assert all(callable(tag) and callable(put) for _, tag, put in entries)
    storage = torch.ones(1).untyped_storage()
    assert entries[0][1](storage) == "cpu"
    assert torch_graphs.untyped(storage) is storage
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    assert torch_graphs.untyped(typed) is storage


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
    assert [torch_graphs.handles_operators(each) for each in (*plain, Own)] == [False] * 4 + [True]


def test_a_parameter_that_a_lazy_module_has_not_made_has_no_storage() -> None:
    lazy = torch.nn.LazyLinear(2).weight
    assert torch_graphs.has_no_storage(lazy)
    with pytest.raises(torch_graphs.NO_STORAGE):
        lazy.untyped_storage()
