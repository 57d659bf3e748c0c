"""Launches of kernels of Triton, on classes of the names that it has."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sys  # noqa: E402
from types import ModuleType, SimpleNamespace  # noqa: E402

from pytest_cudafork.capture.interface.seen import SeenCapture  # noqa: E402
from pytest_cudafork.capture.record import launches as launches_module  # noqa: E402
from pytest_cudafork.capture.record.history import History  # noqa: E402
from pytest_cudafork.capture.record.launches import Launches  # noqa: E402
from pytest_cudafork.capture.record.mode import HistoryMode  # noqa: E402
from pytest_cudafork.capture.record.uses import GraphUses  # noqa: E402
from pytest_cudafork.capture.record.values import Computed  # noqa: E402


class Kernel:
    """Adds one to what it reads, into what it writes."""

    def run(self, source: Any, target: Any, count: int, **options: Any) -> None:
        if not options.get("warmup"):
            target.copy_(source + count)


class Box:
    """Holds a tensor, as the descriptors of Triton do."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def copy_(self, value: Any) -> None:
        self.base.copy_(value)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    jit = ModuleType("triton.runtime.jit")
    jit.JITFunction = type("JITFunction", (Kernel,), {"run": Kernel.run})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter", raising=False)
    return jit.JITFunction()


def test_what_a_kernel_changes_is_learned_and_can_be_had_again(kernel: Any) -> None:
    history = History()
    launches = Launches(history)
    with HistoryMode(history), launches.noted():
        source, target = torch.tensor([1, 2]), torch.zeros(2, dtype=torch.long)
        kernel.run(source, target, 5, warmup=True)
        assert target.tolist() == [0, 0]
        kernel.run(source, target, 5)
        memory = history.memories.get(target)
        assert memory is not None
        assert memory.live
        write = memory.writes[-1]
        assert write.operation.launch
        assert [read.written for read in write.operation.reads] == [False, True]
        with history.pause():
            kernel.run(source, target, 6)
        assert memory.writes[-1] is write
    assert "run" in vars(type(kernel))
    assert type(kernel).run is Kernel.run


def test_a_kernel_that_never_ran_leaves_a_capture_dark(kernel: Any) -> None:
    history = History()
    with HistoryMode(history, SeenCapture(1, "software", "")), Launches(history).noted():
        history.uses = GraphUses(0)
        made = torch.empty(2, dtype=torch.long)
        kernel.run(torch.tensor([1, 2]), made, 5)
        made.sum()
        uses, history.uses = history.uses, None
    assert uses.unfilled == []
    assert "had not run before" in uses.not_seen
    assert uses.lines[0][0] == "a kernel"


def test_memory_that_no_operator_made_is_met_by_its_first_launch(kernel: Any) -> None:
    history = History()
    launches = Launches(history)
    with HistoryMode(history), launches.noted():
        kernel.run(torch.tensor(1), torch.tensor(0), 5)
        source, known = torch.tensor(1), torch.tensor(0)
        with history.pause():
            unseen, within = torch.tensor(0), torch.tensor(0)
        history.uses = GraphUses(0)
        kernel.run(source, known, 1)
        kernel.run(source, unseen, 1)
        kernel.run(source, Box(within), 1)
        uses, history.uses = history.uses, None
    assert uses.met == [history.memories.get(unseen), history.memories.get(within)]
    assert None not in uses.met


def test_nothing_is_compared_while_a_graph_is_captured_that_is_not_looked_at(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches_module, "_in_a_capture", lambda named: True)

    def compared(*tensors: Any) -> bool:
        raise AssertionError("the host waits, and ends the capture")

    monkeypatch.setattr(launches_module, "_same", compared)
    history = History()
    with HistoryMode(history), Launches(history).noted():
        source, target = torch.tensor([1, 2]), torch.zeros(2, dtype=torch.long)
        kernel.run(source, target, 5)
    assert target.tolist() == [6, 7]


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("capturing", [True, False])
def test_the_stream_is_asked_for_tensors_of_a_gpu_alone(
    on_gpu: bool, capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask() -> bool:
        asked.append(1)
        return capturing

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", ask)
    named: list[tuple[int | str, Any]]
    named = [(0, SimpleNamespace(is_cuda=on_gpu)), ("out", SimpleNamespace(is_cuda=False))]
    assert launches_module._in_a_capture(named) is (on_gpu and capturing)
    assert bool(asked) is on_gpu


def test_tensors_within_arguments_are_changed_nobody_knows_how(kernel: Any) -> None:
    history = History()
    with HistoryMode(history), Launches(history).noted():
        target = torch.tensor([0, 0])
        kernel.run(torch.tensor([1, 2]), Box(target), 5)
        memory = history.memories.get(target)
    assert memory is not None
    assert not memory.live
    assert target.tolist() == [6, 7]


class Unhashable:
    """As a kernel of Triton that torch.compile has taken over, and that has lost its lock."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.fn = kernel_function


def kernel_function() -> None:
    """Stand for what a kernel was made from."""


class Compiled:
    """Launches as a kernel does that torch.compile has made."""

    def __init__(self) -> None:
        self.fn = Unhashable()

    def run(self, source: Any, target: Any, count: int, *, stream: int) -> None:
        target.copy_(source + count)


def test_a_kernel_of_torch_compile_is_work_that_cannot_be_had_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "torch._inductor.runtime.triton_heuristics"
    made_by_inductor = ModuleType(name)
    kind = type("CachingAutotuner", (Compiled,), {"run": Compiled.run})
    made_by_inductor.CachingAutotuner = kind  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, name, raising=False)
    history = History()
    launches = Launches(history)
    source, target = torch.tensor([1, 2]), torch.zeros(2, dtype=torch.long)
    with HistoryMode(history), launches.noted():
        monkeypatch.setitem(sys.modules, name, made_by_inductor)
        with launches.noted():  # imported since then
            kernel = made_by_inductor.CachingAutotuner()
            kernel.run(source, target, 5, stream=7)
            memory = history.memories.get(target)
            assert memory is not None
            write = memory.writes[-1]
            assert (write.operation.launch, write.operation.computed) == (True, Computed.UNKNOWN)
            history.uses = GraphUses(0)
            kernel.run(source, target, 5, stream=8)
            uses, history.uses = history.uses, None
    assert target.tolist() == [6, 7]
    assert (uses.work, uses.not_seen) == (1, "")
    assert 8 not in uses.numbers, "a stream is no number that the graph holds"
    assert vars(kind)["run"] is Compiled.run
