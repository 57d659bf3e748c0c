"""When each of torch's functions initializes CUDA: the predicates, without torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.observe.torch import rows
from pytest_cudafork.observe.torch.rows import (
    ABSENT,
    ABSENT_CPU,
    CPU_BUILD,
    CUDA_BUILD,
    PLACE,
    Row,
    Seen,
)
from pytest_cudafork.settings import environment


class Witness:
    """Notes what is recorded; ``seen_below`` is what the driver's witness sees in a call."""

    def __init__(self) -> None:
        self.touched: list[str] = []
        self.below = 0
        self.happened: set[str] = set()
        self.is_poisoned = False

    def first(self, what: str) -> bool:
        """Whether it happens for the first time."""
        known = what in self.happened
        self.happened.add(what)
        return not known

    def touch(self, entry: str, caller: object) -> None:
        """Record a touch."""
        self.touched.append(entry)

    def unseen(self, entry: str, caller: object) -> Seen:
        """Record a touch at the end, unless the driver's witness did."""
        return Seen(lambda: (len(self.touched), self.below), lambda: self.touch(entry, caller))

    def poisoned(self) -> bool:
        """Whether the process was forked from an initialized one."""
        return self.is_poisoned


@pytest.fixture
def witness() -> Any:
    """A witness, and a torch that is not initialized."""
    return Witness()


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``torch.cuda`` as far as it is asked whether it is initialized."""
    made = SimpleNamespace(is_initialized=lambda: False, _tls=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.cuda", made)
    monkeypatch.delenv(environment.NVML_CHECK, raising=False)
    monkeypatch.delenv(environment.VISIBLE_GPUS, raising=False)
    return made


def call(
    witness: Any, table: tuple[Row, ...], name: str, proceed: Callable[..., Any], *args: Any
) -> Any:
    """Call a function of a table as its hook does."""
    row = next(row for row in table if row.name == name)
    return row.around(witness)(proceed, args, {}, None)


def test_an_entry_is_named_as_users_know_it() -> None:
    names = {row.entry for row in (*ABSENT_CPU, *ABSENT)}
    assert {"torch.Tensor.pin_memory", "torch.random.fork_rng"} <= names
    assert "torch.cuda.Stream.__new__" in names


def test_every_row_waits_for_a_module_that_is_hooked() -> None:
    from pytest_cudafork.observe.torch.api import MODULES

    assert {row.after for row in (*CPU_BUILD, *ABSENT_CPU, *ABSENT, *CUDA_BUILD)} == set(MODULES)


@pytest.mark.parametrize("by_nvml", [False, True])
def test_asking_nvml_is_no_touch(
    by_nvml: bool, witness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_nvml:
        monkeypatch.setenv(environment.NVML_CHECK, "1")
    assert call(witness, ABSENT_CPU, "is_available", lambda: "answer") == "answer"
    assert witness.touched == ([] if by_nvml else ["torch.cuda.is_available"])


@pytest.mark.parametrize(("args", "touches"), [((0,), 1), ((-1,), 0), ((), 0), (("x",), 0)])
def test_selecting_no_device_is_no_touch(args: tuple[Any, ...], touches: int, witness: Any) -> None:
    call(witness, ABSENT_CPU, "_exchange_device", lambda *args: None, *args)
    assert len(witness.touched) == touches


def test_the_first_backward_pass_counts_the_devices(witness: Any) -> None:
    def backward(*needs: bool) -> None:
        outputs = tuple(SimpleNamespace(requires_grad=need) for need in needs)
        call(witness, CPU_BUILD, "_engine_run_backward", lambda given: None, outputs)

    backward(True, False)  # refused before the engine begins
    assert witness.touched == []
    backward(True)
    backward(True)
    assert witness.touched == ["torch.autograd.graph._engine_run_backward"]


def test_a_backward_pass_of_what_stand_ins_have_made_is_no_touch(
    witness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = SimpleNamespace(requires_grad=True), SimpleNamespace(requires_grad=True)
    cuda = SimpleNamespace(**{PLACE: lambda tensor: 0 if tensor is there else None})
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)

    def backward(*outputs: object) -> None:
        call(witness, CPU_BUILD, "_engine_run_backward", lambda given: None, outputs)

    backward(there)
    backward(there, here)
    assert witness.touched == []
    backward(here)
    assert witness.touched == ["torch.autograd.graph._engine_run_backward"]


@pytest.mark.parametrize(("error", "touches"), [(None, 1), (TypeError, 0), (RuntimeError, 1)])
def test_arguments_of_a_wrong_type_reach_no_driver(
    error: type[Exception] | None, touches: int, witness: Any
) -> None:
    def set_stream(stream: object) -> str:
        if error is not None:
            raise error
        return "set"

    with pytest.raises(error) if error else contextlib.nullcontext():
        assert call(witness, ABSENT_CPU, "_accelerator_setStream", set_stream, 1) == "set"
    assert len(witness.touched) == touches


@pytest.mark.parametrize(("device", "touches"), [(0, 1), (False, 0), (True, 0)])
def test_a_bool_is_no_number_of_a_device(device: int, touches: int, witness: Any) -> None:
    def set_device(given: int) -> None:
        raise AttributeError("no such name", name="_cuda_setDevice")

    with pytest.raises(AttributeError):
        call(witness, ABSENT_CPU, "set_device", set_device, device)
    call(witness, ABSENT_CPU, "_exchange_device", lambda given: None, device)
    assert len(witness.touched) == 2 * touches


def test_what_a_cpu_build_lacks_is_recorded_when_it_is_missed(witness: Any) -> None:
    def set_device(name: str) -> None:
        raise AttributeError("missing", name=name, obj=None)

    with pytest.raises(AttributeError):
        call(witness, ABSENT_CPU, "set_device", set_device, "something else")
    assert witness.touched == []
    with pytest.raises(AttributeError):
        call(witness, ABSENT_CPU, "set_device", set_device, "_cuda_setDevice")
    assert witness.touched == ["torch.cuda.set_device"]


@pytest.mark.parametrize(
    ("args", "touches"),
    [
        ((None, True, None, None, None), 1),
        ((None, True, None, None, "cuda"), 1),
        ((None, True, None, None, "cpu"), 0),
        ((None, False, None, None, None), 0),
        (([], True, None, None, None), 0),
    ],
)
def test_fork_rng_touches_on_all_devices_alone(
    args: tuple[Any, ...], touches: int, witness: Any
) -> None:
    call(witness, ABSENT, "fork_rng.__wrapped__", lambda *args: None, *args)
    assert len(witness.touched) == touches


@pytest.mark.parametrize(
    ("count", "visible", "answer"), [(3, "", 3), (-1, "", 0), (-1, "MIG-1", -1), (-1, "0", 0)]
)
def test_a_missing_nvml_counts_no_device(
    count: int, visible: str, answer: int, witness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.VISIBLE_GPUS, visible)
    assert call(witness, ABSENT, "_device_count_nvml", lambda: count) == answer
    assert witness.touched == []


def test_what_the_driver_saw_is_not_recorded_twice(witness: Any) -> None:
    def seen() -> None:
        witness.below += 1

    call(witness, CUDA_BUILD, "_cuda_init", seen)
    assert witness.touched == []
    call(witness, CUDA_BUILD, "_cuda_init", lambda: None)
    assert witness.touched == ["torch._C._cuda_init"]


def test_a_call_that_fails_is_recorded_all_the_same(witness: Any) -> None:
    def fail() -> None:
        raise RuntimeError("no CUDA")

    with pytest.raises(RuntimeError, match="no CUDA"):
        call(witness, CUDA_BUILD, "_lazy_init", fail)
    assert witness.touched == ["torch.cuda._lazy_init"]


@pytest.mark.parametrize("how", ["initialized", "initializing"])
def test_a_call_after_the_initialization_is_no_touch(how: str, witness: Any, cuda: Any) -> None:
    if how == "initialized":
        cuda.is_initialized = lambda: True
    else:
        cuda._tls.is_initializing = True
    call(witness, CUDA_BUILD, "_cuda_init", lambda: None)
    assert witness.touched == []


@pytest.mark.parametrize(("poisoned", "touches"), [(True, 1), (False, 0)])
def test_pinning_on_a_cuda_build_is_recorded_where_the_driver_is_not_asked(
    poisoned: bool, touches: int, witness: Any
) -> None:
    witness.is_poisoned = poisoned
    call(witness, CUDA_BUILD, "Tensor.pin_memory", lambda: None)
    assert len(witness.touched) == touches


class FakeTensor:
    """A tensor without memory, as torch has them."""

    device = SimpleNamespace(type="cpu")


@pytest.mark.parametrize(
    ("tensor", "touches"),
    [
        (SimpleNamespace(device=SimpleNamespace(type="cpu")), 1),
        (SimpleNamespace(device=SimpleNamespace(type="meta")), 0),
        (FakeTensor(), 0),
    ],
)
def test_only_a_real_tensor_of_the_cpu_is_pinned(
    tensor: Any, touches: int, witness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = SimpleNamespace(has_torch_function=lambda args: False)
    fakes = SimpleNamespace(FakeTensor=FakeTensor)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(overrides=overrides))
    monkeypatch.setitem(sys.modules, "torch._subclasses.fake_tensor", fakes)
    assert call(witness, ABSENT_CPU, "Tensor.pin_memory", lambda *args: "pinned", tensor)
    assert len(witness.touched) == touches


def test_a_class_that_overrides_pinning_is_asked_itself(
    witness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = SimpleNamespace(
        overrides=SimpleNamespace(
            has_torch_function=lambda args: True,
            handle_torch_function=lambda method, args, *rest, **kwargs: (method, args, rest),
        ),
        Tensor=SimpleNamespace(pin_memory="the method"),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    asked = rows.pins(rows.Call(witness, "entry", lambda: None, ("tensor",), {}, None))
    assert asked == ("the method", ("tensor",), ("tensor",))
    assert witness.touched == []
