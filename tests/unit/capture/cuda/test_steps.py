"""The steps of a function as they run: operators and launches, with what they use."""

from __future__ import annotations

import sys
import types
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


def test_the_watch_sees_each_operator_with_its_line_and_what_it_uses() -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import StepRecorder

    x, y, filled, seen = torch.ones(4), torch.zeros(4), torch.ones(4), StepRecorder()
    with seen:
        made = x + 1
        y.add_(made[1:].sum())
        filled.copy_(x)
        torch._foreach_mul_([x, y], 2.0)
        scratch = torch.empty(4)
        torch.add(x, y, out=scratch)
    names = [step.name for step in seen.steps]
    assert [name for name in names if name != "aten.detach.default"] == [  # of torch 2.11, for out=
        "aten.add.Tensor",
        "aten.slice.Tensor",
        "aten.sum.default",
        "aten.add_.Tensor",
        "aten.copy_.default",
        "aten._foreach_mul_.Scalar",
        "aten.empty.memory_format",
        "aten.add.out",
    ]
    assert all(Path(__file__).name in step.where for step in seen.steps)
    uses = {one.pointer: one for one in seen.storages}
    told = [
        (uses[t.data_ptr()].reads, uses[t.data_ptr()].writes, uses[t.data_ptr()].made)
        for t in (x, y, filled, made, scratch)
    ]
    assert told == [
        (True, True, False),
        (True, True, False),
        (False, True, False),
        (True, True, True),
        (False, True, True),
    ]


def test_the_watch_sees_into_operators_that_are_made_of_functions() -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import StepRecorder

    x, gate, seen = torch.ones(4), torch.tensor(False), StepRecorder()
    with seen:
        made = torch.ops.higher_order.cond(gate, lambda x: x + 1, lambda x: x.sub(1), (x,))
    names = [step.name for step in seen.steps]
    assert names[0] in ("aten._local_scalar_dense.default", "aten.is_nonzero.default")
    assert "aten.sub.Tensor" in names
    assert not {"cond", "aten.add.Tensor"} & set(names)
    assert all(Path(__file__).name in step.where for step in seen.steps)
    uses = {one.pointer: one for one in seen.storages}
    assert uses[x.data_ptr()].reads
    assert uses[made.data_ptr()].made
    assert made.tolist() == [0] * 4


def test_one_that_cannot_be_seen_into_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.capture.cuda import steps

    monkeypatch.setattr(steps, "seen_inside", lambda op, mode: None)
    x, seen = torch.ones(4), steps.StepRecorder()
    with seen:
        made = torch.ops.higher_order.cond(True, lambda x: x + 1, lambda x: x, (x,))
    (step,) = seen.steps
    assert (step.name, step.launches, step.exact) == ("cond", True, False)
    uses = {one.pointer: one for one in seen.storages}
    assert uses[x.data_ptr()].reads
    assert uses[x.data_ptr()].writes
    assert uses[made.data_ptr()].made


@pytest.mark.slow
def test_the_watch_lets_torch_compile_compile() -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import StepRecorder

    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda t: torch.relu(t) + 1, backend=backend)
    with StepRecorder() as seen:
        compiled(torch.ones(3))
    assert len(graphs) == 1
    assert seen.steps


def test_a_tensor_of_its_own_kind_is_seen_as_what_it_consists_of() -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import StepRecorder

    class Wrapped(torch.Tensor):  # type: ignore[misc]
        inner: torch.Tensor

        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapped:
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made  # type: ignore[no-any-return]

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            plain = [one.inner if isinstance(one, Wrapped) else one for one in args]
            return Wrapped(func(*plain, **(kwargs or {})))

    inner = torch.ones(3)
    with StepRecorder() as seen:
        Wrapped(inner) + 1
    assert [step.name for step in seen.steps] == ["aten.add.Tensor"]
    assert inner.data_ptr() in {one.pointer for one in seen.storages}


def test_a_launch_of_triton_is_seen_and_the_patch_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import StepRecorder, triton_launches

    class JITFunction:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> str:
            return "launched"

    def twice_kernel() -> None: ...

    jit = types.SimpleNamespace(JITFunction=JITFunction)
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    original, x, seen = JITFunction.run, torch.ones(3), StepRecorder()
    with triton_launches(seen), seen:
        assert JITFunction(twice_kernel).run(x, grid=(1,), warmup=False) == "launched"
        JITFunction(twice_kernel).run(x, grid=(1,), warmup=True)
    assert JITFunction.run is original
    assert [step.name for step in seen.steps] == ["twice_kernel"]
    assert Path(__file__).name in seen.steps[0].where
    assert [one.pointer for one in seen.storages] == [x.data_ptr()]


def test_the_watch_keeps_no_tensor_alive() -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import StepRecorder

    x, seen = torch.ones(4), StepRecorder()
    with seen:
        x + 1
    alive = weakref.ref(x)
    del x
    assert alive() is None


@pytest.mark.parametrize(
    "name",
    ["copy_", "zero_.default", "geometric_", "cauchy_", "log_normal_", "_foreach_copy_",
     "_foreach_zero_"],
)  # fmt: skip
def test_what_an_operator_overwrites_it_does_not_read(name: str) -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import signature_of

    op = getattr(torch.ops.aten, name.partition(".")[0]).default
    signature = signature_of(op)
    assert signature.writes
    places = signature.traits.places
    assert {place: each.reads for place, each in places.items()} == {0: False, "self": False}


@pytest.mark.slow
def test_both_backends_agree_on_what_every_operator_of_torch_reads_and_writes() -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import signature_of
    from pytest_cudafork.capture.operators.rules import Kind
    from pytest_cudafork.capture.operators.traits import traits_of

    aten = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    for name, _, overload in (one.removeprefix("aten::").partition(".") for one in aten):
        op = getattr(getattr(torch.ops.aten, name), overload or "default", None)
        if op is None:
            continue
        traits, signature = traits_of(op), signature_of(op)
        if traits.kind is Kind.WORK:
            assert signature.writes
            assert signature.traits.places.keys() == {
                at for one in traits.written for at in (one.position, one.name)
            }
            assert signature.reads is not traits.shape_only
        elif traits.kind is Kind.VIEW:
            assert signature.view
            assert not signature.reads
    assert len(aten) > 1000
