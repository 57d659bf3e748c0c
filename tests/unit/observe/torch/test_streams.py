"""Streams and events of the present face: they can be made and asked, and nothing is queued."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch.streams import dress_dummies, stand_in_classes
from tests.unit.observe.torch.simulated import Simulated


class Dummy:
    """A class that a CPU build of torch refuses to instantiate."""

    def __new__(cls, *args: object, **kwargs: object) -> Dummy:
        """Refuse."""
        raise RuntimeError("a dummy")


class Graph:
    """The class of graphs of a CUDA build."""

    keep_graph: bool

    def __new__(cls, keep_graph: bool = False) -> Graph:
        """Make one, as torch's does."""
        made = super().__new__(cls)
        made.keep_graph = keep_graph
        return made


@pytest.fixture
def sim() -> Any:
    """GPUs that answer, with the dummies of a CPU build."""
    made = Simulated()
    for name in ("_CudaStreamBase", "_CudaEventBase", "_CUDAGraph", "_MemPool"):
        setattr(made.core, name, type(name, (Dummy,), {}))
    return made


@pytest.fixture
def dressed(sim: Any) -> Any:
    """The dummies with a body; without one again in the end."""
    with UndoStack() as undo:
        dress_dummies(sim, undo)
        yield sim.core
    with pytest.raises(RuntimeError, match="a dummy"):
        sim.core._CudaStreamBase()


def test_a_stream_has_a_number_and_a_device_of_its_own(dressed: Any, sim: Any) -> None:
    first, second = dressed._CudaStreamBase(), dressed._CudaStreamBase(1, priority=-1)
    assert sim.asked == ["ensure", "ensure"]
    assert first != second
    assert len({first, second, first}) == 2
    assert (second.device_index, second.priority, second.device_type) == (1, -1, 1)
    assert second.device == ("device", "cuda", 1)
    assert first.cuda_stream == first.stream_id
    assert first.query()
    assert not first.is_capturing()
    assert first.native_handle == first.cuda_stream
    assert first.synchronize() is None
    assert first.priority_range() == (0, -5)


def test_a_stream_that_exists_is_named_by_its_number(dressed: Any) -> None:
    one = dressed._CudaStreamBase(stream_id=7, device_index=1)
    assert one == dressed._CudaStreamBase(stream_id=7, device_index=1)
    assert dressed._CudaStreamBase(stream_ptr=9).stream_id == 9


def test_a_stream_is_current_within_its_block(dressed: Any, sim: Any) -> None:
    stream = dressed._CudaStreamBase()
    with stream as entered:
        assert entered is stream
        assert sim.stream(0) == (stream.stream_id, 0, 1)
    assert sim.stream(0) == (0, 0, 1)


def test_an_event_asks_no_driver_until_it_is_recorded(dressed: Any, sim: Any) -> None:
    event = dressed._CudaEventBase(enable_timing=True)
    assert sim.asked == []
    assert event.query()
    assert event.synchronize() is None
    event.record()
    event.wait()
    assert sim.asked == ["ensure", "ensure"]
    assert event.device == ("device", "cuda", 0)
    with pytest.raises(RuntimeError, match=r"Event\.elapsed_time"):
        event.elapsed_time(event)


@pytest.mark.parametrize("name", ["_CUDAGraph", "_MemPool"])
def test_graphs_and_pools_are_refused(name: str, dressed: Any) -> None:
    with pytest.raises(RuntimeError, match=f"refused {name}"):
        getattr(dressed, name)()


def test_on_a_cuda_build_other_classes_stand_in(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch.cuda.streams")
    for name in ("Stream", "ExternalStream", "Event"):
        setattr(module, name, Dummy)
        setattr(sim.cuda, name, Dummy)
    monkeypatch.setitem(sys.modules, "torch.cuda.streams", module)
    sim.cuda.CUDAGraph = Graph
    with UndoStack() as undo:
        stand_in_classes(sim, undo)
        streams: Any = sys.modules["torch.cuda.streams"]
        assert sim.cuda.Stream is streams.Stream is not Dummy
        stream, event = sim.cuda.Stream(), sim.cuda.Event()
        assert isinstance(stream.record_event(), sim.cuda.Event)
        assert stream.record_event(event) is event
        assert stream.wait_event(event) is stream.wait_stream(stream) is None
        assert "torch.cuda.Stream" in repr(stream)
        assert not stream.is_capturing()
        for graph in (Graph, type("Derived", (Graph,), {})):
            with pytest.raises(RuntimeError, match="refused CUDAGraph"):
                graph()
        # A look at captures hooks its methods.
        assert sim.cuda.CUDAGraph is Graph
    assert sim.cuda.Stream is streams.Stream is Dummy
    assert Graph(keep_graph=True).keep_graph
