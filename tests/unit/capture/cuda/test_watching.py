"""What is watched while a real graph is captured: lines, memory, and where a capture breaks.

Without a GPU. The attempts run on a stand-in for the driver (``capture_cuda_support``).
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import textwrap
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import needs_torch

pytestmark = needs_torch

BODIES = {
    "an operator": "y = x + 1\nspoil_op(x)  # here\nreturn y",
    "a call between operators": "y = touch(x)\nspoil()  # here\nreturn touch(y)",
    "a call after the last operator": "y = touch(x)\nspoil()  # here\nreturn y",
    "a call before the first": "spoil()  # here\nreturn touch(x)",
    "a call that raises": "y = touch(x)\nspoil_loudly()  # here\nreturn touch(y)",
    "a call in a helper": (
        "def helper():\n    a = 1\n    spoil()  # here\n    return a\nhelper()\nreturn touch(x)"
    ),
    "a swallowed error": (
        "try:\n    spoil_op(x)  # here\nexcept RuntimeError:\n    pass\nreturn x + 1"
    ),
    "a swallowed error and another": (
        "try:\n    spoil_op(x)  # here\nexcept RuntimeError:\n    pass\nraise KeyError('mine')"
    ),
}
REFUSED = "CUDA error: operation not permitted when stream is capturing"
FAILED = "capture-failed"
_count = itertools.count()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for the driver; afterwards nothing may be left begun."""
    from pytest_cudafork.capture.cuda.libcuda import CaptureStatus
    from tests.support.capture_cuda import pretend

    made = pretend(monkeypatch)
    before = gc.isenabled(), sys.gettrace()
    yield made
    assert made.state is CaptureStatus.NONE
    assert made.pools == []
    assert (gc.isenabled(), sys.gettrace()) == before


@pytest.fixture
def attempt(driver: Any) -> Any:
    from pytest_cudafork.capture.cuda.attempt import Attempt
    from tests.support.capture_cuda import FakeStream

    return Attempt(driver, FakeStream(), (1, 2), "global", ())


def user_function(tmp_path: Path, body: str, driver: Any) -> tuple[Any, str]:
    """A function of a file of its own, and the place that is to be named."""
    import torch

    from pytest_cudafork.capture.cuda.libcuda import CaptureStatus

    def spoil_op(x: torch.Tensor) -> torch.Tensor:
        driver.spoil()
        raise RuntimeError(REFUSED)

    def touch_op(x: torch.Tensor) -> torch.Tensor:
        driver.launch()
        return x + 1

    number = next(_count)
    ops = [
        torch.library.custom_op(
            f"cudafork_test::{op.__name__}{number}",
            op,
            mutates_args=(),
            schema="(Tensor x) -> Tensor",
        )
        for op in (spoil_op, touch_op)
    ]

    def spoil_loudly() -> None:
        spoil_op(torch.ones(1))

    source = f"def fn():\n{textwrap.indent(body, '    ')}\n"
    path = tmp_path / "user_code.py"
    path.write_text(source, encoding="utf-8")
    module = types.ModuleType("user_code")
    # A call into C: no line of Python lies within it.
    spoil = functools.partial(setattr, driver, "state", CaptureStatus.INVALIDATED)
    module.__dict__.update(
        spoil_op=ops[0],
        touch=ops[1],
        spoil=spoil,
        spoil_loudly=spoil_loudly,
        x=torch.ones(3),
    )
    exec(compile(source, str(path), "exec"), module.__dict__)
    lines = source.splitlines()
    line = next((n for n, text in enumerate(lines, 1) if text.endswith("# here")), 0)
    return module.fn, f"user_code.py:{line}"


@pytest.mark.parametrize("body", list(BODIES.values()), ids=list(BODIES))
def test_the_line_that_breaks_a_capture_is_found(
    attempt: Any, driver: Any, tmp_path: Path, body: str
) -> None:
    from pytest_cudafork.capture.cuda.attempt import Failed

    fn, place = user_function(tmp_path, body, driver)
    failed = attempt.run(fn)
    assert isinstance(failed, Failed)
    where = failed.clue.where or attempt.find_line(fn)
    if "loudly" in body:  # the line that raises is in this file, which is user code too
        assert Path(__file__).name in where
    else:
        assert where.endswith(place)


def test_a_second_run_happens_only_where_the_first_does_not_tell(
    attempt: Any, driver: Any, tmp_path: Path
) -> None:
    fn, _ = user_function(tmp_path, BODIES["an operator"], driver)
    assert attempt.run(fn).clue.where
    assert driver.captures == 1


def test_a_line_that_no_python_ran_is_bracketed(attempt: Any, driver: Any, tmp_path: Path) -> None:
    from pytest_cudafork.capture.cuda.failing_line import explain

    calls: list[int] = []
    fn, _ = user_function(tmp_path, "y = touch(x)\nonce()\nreturn touch(y)", driver)

    def once() -> None:
        calls.append(1)
        if len(calls) == 1:
            driver.spoil()

    fn.__globals__["once"] = once
    failed = attempt.run(fn)
    assert failed.clue.where == ""
    assert attempt.find_line(fn) == ""
    finding = explain(failed.clue, failed.error)
    assert "user_code.py:2" in finding.what
    assert "user_code.py:4" in finding.what


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, RuntimeError])
def test_an_error_of_the_users_own_passes(
    attempt: Any, tmp_path: Path, error: type[BaseException]
) -> None:
    def fn() -> None:
        raise error("mine")

    with pytest.raises(error, match="mine"):
        attempt.run(fn)


def test_a_capture_that_succeeds_has_its_result_and_its_uses(attempt: Any, driver: Any) -> None:
    import torch

    x = torch.ones(3)
    captured = attempt.run(lambda: x + 1)
    assert captured.recording.result.tolist() == [2.0] * 3
    assert {use.tensor for use in captured.recording.uses} == {"float32[3]"}
    assert captured.findings == []


def test_the_tracer_gives_back_what_traced_before() -> None:
    from pytest_cudafork.capture.cuda.failing_line import LineTracer

    seen: list[str] = []

    def mine(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        with LineTracer(lambda: True).running():
            pass
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("operator", "said", "words", "check"),
    [
        ("aten._local_scalar_dense.default", REFUSED, ".item()", "host-sync"),
        ("aten.nonzero.default", REFUSED, "nonzero()", "host-sync"),
        ("", "CUDA error: capturing stream has unjoined work", "not joined", FAILED),
        (
            "aten.rand.generator",
            "Attempt to increase offset for a CUDA generator",
            "registered",
            FAILED,
        ),
        ("mine.op.default", "CUDA error: no", "mine.op.default cannot be captured", FAILED),
        ("", "CUDA error: no", "this line cannot be captured", FAILED),
        ("", REFUSED, "this line waits for the GPU", "host-sync"),
    ],
)
def test_a_failure_is_explained_in_the_users_words(
    operator: str, said: str, words: str, check: str
) -> None:
    from pytest_cudafork.capture.cuda.failing_line import Clue, explain

    finding = explain(Clue("user.py:3", operator), RuntimeError(said))
    assert finding.check == check
    assert words in f"{finding.what} {finding.why}"
    assert said in finding.what
    assert finding.where == "user.py:3"
    assert finding.why
    assert finding.todo


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ("CUDA error: operation not permitted when stream is capturing", True),
        ("CUDA error: operation failed due to a previous error during capture", True),
        ("CUDA error: capturing stream has unjoined work", True),
        ("operation not permitted on an event last recorded in a capturing stream", True),
        ("Attempt to increase offset for a CUDA generator not in capture mode.", True),
        ("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture.", True),
        ("CUDA out of memory", False),
        ("could not capture the screen", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_an_error_is_about_the_capture_or_not(said: str, about: bool) -> None:
    from pytest_cudafork.capture.cuda.failing_line import is_about_capture

    assert is_about_capture(RuntimeError(said)) is about


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


SEGMENTS = [
    {
        "address": 1000,
        "segment_pool_id": (0, 0),
        "blocks": [
            {"address": 1000, "size": 100, "state": "active_allocated"},
            {"address": 1100, "size": 100, "state": "inactive"},
        ],
    },
    {
        "address": 5000,
        "segment_pool_id": (0, 3),
        "blocks": [{"size": 100, "state": "active_allocated"}, {"size": 50, "state": "inactive"}],
    },
]


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        (999, None),
        (1000, (True, (0, 0))),
        (1099, (True, (0, 0))),
        (1100, (False, (0, 0))),
        (1200, None),
        (5000, (True, (0, 3))),
        (5120, (False, (0, 3))),
    ],
)
def test_an_address_belongs_to_a_pool_or_to_somebody_else(pointer: int, found: Any) -> None:
    from pytest_cudafork.capture.cuda.memory import AllocatorMap

    assert AllocatorMap(SEGMENTS).find(pointer) == found
    assert AllocatorMap([]).find(pointer) is None


def tracked(pointer: int, *, made: bool) -> Any:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    from pytest_cudafork.capture.cuda.memory import Tracked

    weak = StorageWeakRef(torch.ones(1).untyped_storage())
    return Tracked(weak, pointer, 4, "cuda:0", "float32[1]", [0], "user.py:1", True, made)


def test_memory_is_the_graphs_own_or_somebody_elses() -> None:
    from pytest_cudafork.capture.cuda.memory import AllocatorMap, outside_pool, settle

    before, after = AllocatorMap(SEGMENTS[:1]), AllocatorMap(SEGMENTS)
    held = tracked(1000, made=False)
    cached = tracked(1000, made=True)  # an operator returned what was there before
    fresh = tracked(1100, made=True)
    pooled, compiled = tracked(5000, made=True), tracked(5000, made=False)
    foreign = tracked(9000, made=False)
    everything = [held, cached, fresh, pooled, compiled, foreign]
    settle(everything, before, after)
    assert [one.owned for one in everything] == [False, False, True, True, True, False]
    findings = outside_pool(everything, lambda step: True)
    assert [finding.check for finding in findings] == ["outside-pool"]
    assert "0x44c" in findings[0].what
    assert outside_pool(everything, lambda step: False) == []


def test_freed_and_moved_memory_is_found_and_memory_of_others_is_not() -> None:
    import torch

    from pytest_cudafork.capture.cuda.memory import Storages, needed_from_outside

    kept, freed, moved = torch.ones(64), torch.ones(64), torch.ones(64)
    storages = Storages()
    for tensor in (kept, freed, moved):
        storages.note(tensor, 0, "user.py:1", reads=True)
    lifetimes = needed_from_outside(storages, lambda step: True, lambda pointer: True)
    assert lifetimes.gone() == []
    del freed, tensor
    moved.resize_(1 << 20)
    gone = lifetimes.gone()
    assert [finding.check for finding in gone] == ["freed-memory"] * 2
    assert "has been freed" in gone[0].what
    assert "has moved to" in gone[1].what
    unused = needed_from_outside(storages, lambda step: False, lambda pointer: True)
    assert unused.gone() == []
    pinned = needed_from_outside(storages, lambda step: True, lambda pointer: False)
    assert pinned.gone() == []
    assert kept is not None


def test_the_watch_keeps_no_tensor_alive() -> None:
    import torch

    from pytest_cudafork.capture.cuda.steps import StepRecorder

    x, seen = torch.ones(4), StepRecorder()
    with seen:
        x + 1
    alive = weakref.ref(x)
    del x
    assert alive() is None
