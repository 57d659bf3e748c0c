"""The hooks on torch's class of graphs, tried on a class of its kind."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.seen import Listener, SeenCapture, Watch  # noqa: E402
from pytest_cudafork.capture.seen import torch_graphs  # noqa: E402
from pytest_cudafork.capture.seen.torch_graphs import hooked, hooks_on, inputs_noted  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from pytest_cudafork.capture.stand_ins.in_force import in_force  # noqa: E402
from pytest_cudafork.compat.torch_graphs.functions import GRAPH_TREES, RECORDS_A_GRAPH  # noqa: E402
from tests.support.captures import looking  # noqa: E402


class Log(Listener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.work: int | None = -1

    def on_capture_begin(self, capture: SeenCapture) -> None:
        self.log.append(f"begin {capture.backend}")

    def on_capture_end(self, capture: SeenCapture) -> None:
        self.log.append(f"end {capture.captured} {capture.pool}")
        self.work = capture.work

    def on_replay_end(self, capture: SeenCapture, failed: BaseException | None) -> None:
        self.log.append("replayed")

    def on_replay_elsewhere(self, capture: Any) -> None:
        self.log.append("replayed elsewhere")

    def on_reset(self, capture: SeenCapture) -> None:
        self.log.append("reset")


def graph_class() -> Any:
    """Make a class with the methods of torch's own."""

    class CUDAGraph:
        def __init__(self) -> None:
            self.called: list[Any] = []
            self.breaks = False

        def capture_begin(
            self, pool: Any = None, mode: str = "global", check_input_liveness: bool = False
        ) -> None:
            self.called.append(("begin", pool, mode, check_input_liveness))

        def capture_end(self) -> None:
            self.called.append("end")
            if self.breaks:
                raise RuntimeError("operation failed due to a previous error during capture")

        def replay(self) -> None:
            self.called.append("replay")

        def reset(self) -> None:
            self.called.append("reset")

        def pool(self) -> str:
            return "pool"

    return CUDAGraph


def test_the_methods_tell_the_watch_and_do_their_work() -> None:
    kind, log = graph_class(), Log()
    watch, before = Watch([log]), dict(vars(kind))
    with hooks_on(kind), watch.in_force():
        made = kind()
        made.capture_begin("a pool", mode="relaxed")
        made.capture_end()
        made.replay()
        made.reset()
        broken = kind()
        broken.breaks = True
        broken.capture_begin(None, "global", False)
        with pytest.raises(RuntimeError, match="previous error"):
            broken.capture_end()
    assert made.called == [("begin", "a pool", "relaxed", True), "end", "replay", "reset"]
    assert broken.called[0] == ("begin", None, "global", False)
    assert log.log == ["begin cuda", "end True pool", "replayed", "reset", "begin cuda",
                       "end False None"]  # fmt: skip
    assert dict(vars(kind)) == before


def test_the_driver_is_asked_what_a_graph_holds_before_its_capture_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, log = graph_class(), Log()
    made = kind()
    monkeypatch.setattr(torch_graphs, "work_in_progress", lambda: len(made.called))
    with hooks_on(kind), Watch([log]).in_force():
        made.capture_begin()
        made.capture_end()
    assert log.work == 1, "it had begun, and not ended"


def test_no_garbage_is_collected_from_the_beginning_of_a_capture_to_its_end() -> None:
    kind, seen = graph_class(), list[bool]()
    begin, end = kind.capture_begin, kind.capture_end

    def noted_begin(graph: Any) -> None:
        seen.append(gc.isenabled())
        begin(graph)

    def noted_end(graph: Any) -> None:
        seen.append(gc.isenabled())
        end(graph)

    kind.capture_begin, kind.capture_end = noted_begin, noted_end
    with hooks_on(kind), Watch([]).in_force():
        for breaks in (False, True):
            made = kind()
            made.breaks = breaks
            made.capture_begin()
            seen.append(gc.isenabled())
            with contextlib.suppress(RuntimeError):
                made.capture_end()
            assert seen == [False] * 3
            assert gc.isenabled()
            seen.clear()


def test_a_capture_that_cannot_begin_or_never_ends_leaves_the_collector_as_it_was() -> None:
    kind = graph_class()
    with hooks_on(kind), Watch([]).in_force():
        with pytest.raises(TypeError):
            kind().capture_begin(unknown=True)
        assert gc.isenabled()
        kind().capture_begin()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_without_a_watch_in_this_thread_they_are_what_they_were() -> None:
    kind = graph_class()
    with hooks_on(kind):
        made = kind()
        made.capture_begin()
        made.capture_end()
        made.replay()
        made.reset()
    assert made.called == [("begin", None, "global", False), "end", "replay", "reset"]


def test_a_replay_without_a_watch_is_told_to_the_one_that_saw_the_capture() -> None:
    kind, log = graph_class(), Log()
    with hooks_on(kind):
        made = kind()
        with Watch([log]).in_force():
            made.capture_begin()
            made.capture_end()
            log.log.clear()
        made.replay()
    assert log.log == ["replayed elsewhere"]
    assert made.called[-1] == "replay"


def test_while_a_check_of_ours_captures_torch_is_asked_for_nothing() -> None:
    kind, log = graph_class(), Log()
    watch = Watch([log])
    with hooks_on(kind), watch.in_force(), watch.suspended():
        made = kind()
        made.capture_begin()
        made.capture_end()
    assert made.called == [("begin", None, "global", False), "end"]
    assert log.log == []


def test_torchs_own_class_is_hooked_and_its_stand_in_is_not() -> None:
    kind = torch.cuda.graphs.CUDAGraph
    original = kind.replay
    with hooked(lambda: None):
        assert kind.replay is not original
    assert kind.replay is original
    with in_force():
        stand_in = torch.cuda.CUDAGraph
        replay = stand_in.replay
        with hooked(lambda: None):
            assert stand_in.replay is replay


def test_captures_of_other_threads_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, elsewhere = graph_class(), list[int]()
    begin = kind.capture_begin
    monkeypatch.setattr(torch.cuda.graphs, "CUDAGraph", kind)
    with hooked(lambda: elsewhere.append(1)):
        with Watch([]).in_force():
            kind().capture_begin()
            assert elsewhere == []
            thread = threading.Thread(target=lambda: kind().capture_begin())
            thread.start()
            thread.join()
        assert elsewhere == [1]
    assert kind.capture_begin is begin


def test_so_are_those_on_stand_ins_that_come_into_force_later() -> None:
    elsewhere = list[int]()

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(2)

    with hooked(lambda: elsewhere.append(1)), in_force(), Watch([]).in_force():
        capture()
        assert elsewhere == []
        thread = threading.Thread(target=capture)
        thread.start()
        thread.join()
    assert elsewhere == [1]


class Node:
    """One graph of a tree, which lets go of its inputs as torch's does."""

    def __init__(self) -> None:
        self.graph = graphs.CUDAGraph()

    def _record(self, model: Any, inputs: list[Any]) -> Any:
        with graphs.graph(self.graph):
            return model(inputs)


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put a module with this class in the place of torch's."""
    module = ModuleType(GRAPH_TREES)
    setattr(module, RECORDS_A_GRAPH[0], type("CUDAGraphNode", (Node,), dict(vars(Node))))
    monkeypatch.setitem(sys.modules, GRAPH_TREES, module)
    return module


def recorded(module: Any, aside: Any = None) -> Any:
    node = module.CUDAGraphNode()

    def model(inputs: list[Any]) -> Any:
        (x,) = inputs
        inputs.clear()
        return x + 1 if aside is None else x + aside

    inputs = [torch.empty(3).fill_(1)]
    node.kept = node._record(model, inputs)
    assert inputs == []
    return node


def test_an_input_of_a_tree_may_be_freed(trees: ModuleType) -> None:
    with looking() as look:
        node = recorded(trees)
        with pytest.raises(RuntimeError, match="freed"):  # the software graph knows of no address
            node.graph.replay()
        assert look.kinds() == []


def test_what_is_no_input_of_the_tree_may_not_be_freed(trees: ModuleType) -> None:
    with looking() as look:
        held = [torch.ones(3)]
        node = recorded(trees, held[0])
        held.clear()
        with pytest.raises(RuntimeError, match="freed"):
            node.graph.replay()
        assert look.kinds() == ["freed-memory"]


def test_what_is_captured_beside_a_tree_may_not_be_freed_either(trees: ModuleType) -> None:
    with looking() as look:
        recorded(trees)
        held = [torch.ones(3)]
        captured = look.capture(lambda: held[0] + 1)
        assert captured.seen.renewed == frozenset()
        held.clear()
        with pytest.raises(RuntimeError, match="freed"):
            captured.replay()
        assert look.kinds() == ["freed-memory"]


def test_the_class_is_as_before_afterwards(trees: ModuleType) -> None:
    kind = getattr(trees, RECORDS_A_GRAPH[0])
    before = dict(vars(kind))
    with inputs_noted():
        assert dict(vars(kind)) != before
    assert dict(vars(kind)) == before


@pytest.mark.slow
def test_the_class_of_torch_is_as_expected() -> None:
    module = pytest.importorskip(GRAPH_TREES)
    record = getattr(getattr(module, RECORDS_A_GRAPH[0]), RECORDS_A_GRAPH[1])
    assert list(inspect.signature(record).parameters) == ["self", "model", "inputs"]
