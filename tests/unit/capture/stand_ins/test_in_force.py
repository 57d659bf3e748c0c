"""The stand-ins in the place of torch's names: where they are, and that nothing of them stays."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing import graphs, streams  # noqa: E402
from pytest_cudafork.capture.stand_ins.in_force import in_force  # noqa: E402
from pytest_cudafork.errors import (  # noqa: E402
    CudaForkWarning,
    GraphNotJudgedError,
    ReplayDiffersError,
)


class Manager:
    """A manager of graphs as libraries have them: a graph for each batch size, one pool."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(8, 8)
        self.graphs: dict[int, Any] = {}
        self.x, self.out = torch.zeros(4, 8), torch.zeros(4, 8)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def capture(self) -> None:
        pool = None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.model(self.x)
        torch.cuda.current_stream().wait_stream(side)
        for size in (4, 2):
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made, pool):
                self.out[:size] = self.model(self.x[:size])
            pool = made.pool() if pool is None else pool
            self.graphs[size] = made
            torch.cuda.synchronize()

    def run(self, size: int = 4) -> Any:
        self.graphs[size].replay()
        return self.out[:size]


def test_a_manager_runs_as_it_is_and_its_graphs_are_checked() -> None:
    with in_force():
        manager = Manager()
        manager.capture()
        eager = torch.no_grad()(manager.model)
        report = assert_replay_equals_eager(eager, [manager.x], replay=manager.run)
        assert report.replays > 1

        def reload() -> None:
            manager.model.weight.data = manager.model.weight.data * 2

        with pytest.raises(ReplayDiffersError):
            assert_replay_equals_eager(eager, [manager.x], replay=manager.run, vary=[reload])


def test_torch_s_own_callables_are_made_of_stand_ins() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    x = torch.randn(3, 4, requires_grad=True)
    wanted = model(x)
    wanted.sum().backward()
    gradient, x.grad = x.grad, None
    with in_force():
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn(3, 4, requires_grad=True),))
        got = graphed(x)
        got.sum().backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(x.grad, gradient)


def test_all_is_as_it_was_afterwards() -> None:
    names = ("CUDAGraph", "graph", "Stream", "Event", "stream", "synchronize", "current_stream")
    before = [getattr(torch.cuda, name) for name in names]
    accelerator = torch.accelerator.synchronize
    with in_force():
        assert torch.cuda.CUDAGraph is graphs.CUDAGraph
        assert torch.cuda.graphs.CUDAGraph is graphs.CUDAGraph
        assert torch.cuda.Stream is streams.Stream
        assert torch.accelerator.synchronize is streams.synchronize
        with in_force():
            pass
        assert torch.cuda.CUDAGraph is graphs.CUDAGraph
    assert [getattr(torch.cuda, name) for name in names] == before
    assert torch.accelerator.synchronize is accelerator
    assert torch.cuda.graphs.CUDAGraph is before[0]
    assert not torch.cuda.is_initialized()


def test_names_that_modules_took_are_replaced_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early, late = ModuleType("takes_names_early"), ModuleType("takes_names_late")
    early.CUDAGraph = torch.cuda.CUDAGraph  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, early.__name__, early)
    with in_force():
        assert vars(early)["CUDAGraph"] is graphs.CUDAGraph
        late.CUDAGraph = torch.cuda.CUDAGraph  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, late.__name__, late)
    assert vars(early)["CUDAGraph"] is vars(late)["CUDAGraph"] is torch.cuda.CUDAGraph


def test_a_module_that_had_a_stand_in_before_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("has_stand_ins")
    module.CUDAGraph, module.Stream = graphs.CUDAGraph, torch.cuda.Stream
    monkeypatch.setitem(sys.modules, "has_stand_ins", module)
    original = torch.cuda.Stream
    with in_force():
        assert module.Stream is streams.Stream
    assert module.CUDAGraph is graphs.CUDAGraph
    assert module.Stream is original


def test_torch_s_own_classes_make_stand_ins_where_they_have_other_names() -> None:
    a_graph, a_capture, a_stream = torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.Stream

    class Derived(torch.cuda.CUDAGraph):  # type: ignore[misc, name-defined]
        pass

    x = torch.ones(2)
    with in_force():
        made = a_graph()
        with a_capture(made, pool=None):
            x.add_(1)
        made.replay()
        assert x.tolist() == [2, 2]
        assert isinstance(a_stream(), streams.Stream)
        with pytest.raises(GraphNotJudgedError, match="Derived is derived from"):
            Derived()
    assert "stand_in" not in vars(a_capture)
    if not os.path.exists("/dev/nvidiactl"):
        with pytest.raises((RuntimeError, AssertionError)):
            a_stream()


def test_marks_for_a_profiler_are_no_error() -> None:
    x, made = torch.ones(2), None
    with in_force():
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made), torch.cuda.nvtx.range("forward"):
            torch.cuda.nvtx.range_push("inner")
            y = x * 2
            torch.cuda.nvtx.range_pop()
            torch.cuda.nvtx.mark("done")
        torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("outer"))
        made.replay()
    assert y.tolist() == [2, 2]


def test_a_capture_left_open_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="never ended"), in_force():
        torch.cuda.CUDAGraph().capture_begin()
    assert not graphs.is_current_stream_capturing()


def test_a_capture_left_open_hides_no_other_error() -> None:
    def fails() -> None:
        with in_force():
            torch.cuda.CUDAGraph().capture_begin()
            raise ZeroDivisionError

    with (
        pytest.warns(CudaForkWarning, match="never ended"),
        pytest.raises(ZeroDivisionError),
    ):
        fails()
    assert not graphs.is_current_stream_capturing()
