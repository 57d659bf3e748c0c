"""Streams, events and graphs of torch's present face.

A CPU build of torch derives ``torch.cuda.Stream`` and ``Event`` from dummy classes which refuse to
be instantiated; these get a body that can be constructed and asked. Those of a CUDA build are made
in C and ask the driver: other classes stand in for them. A graph is refused on both.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.torch.refusals import refused_call

if TYPE_CHECKING:
    from pytest_cudafork.observe.torch.present import Simulation


def dress_dummies(sim: Simulation, undo: UndoStack) -> None:
    """Give the dummy base classes in ``torch._C`` the bodies below, until *undo*."""
    bodies = {"_CudaStreamBase": _stream_body(sim), "_CudaEventBase": _event_body(sim)}
    for name in ("_CUDAGraph", "_MemPool", "_cuda_CUDAAllocator"):
        bodies[name] = {"__new__": refused_call(sim, name), "__init__": _accepting}
    for name, body in bodies.items():
        # A torch without the dummy does not offer the class at all.
        dummy = getattr(sim.core, name, None)
        if dummy is not None:
            for attribute, value in body.items():
                undo.set(dummy, attribute, value)


def stand_in_classes(sim: Simulation, undo: UndoStack) -> None:
    """Put other classes in the place of torch's own, until *undo*.

    Code that took ``torch.cuda.Stream`` by name before keeps the real one. The class of graphs
    stays torch's own, with the methods that a look at captures hooks: only none can be made.
    """
    event = type("Event", (), {"__module__": "torch.cuda.streams", **_event_body(sim)})
    methods = {
        "wait_event": lambda self, event: event.wait(self),
        "wait_stream": lambda self, stream: None,
        "record_event": lambda self, other=None: event() if other is None else other,
        "__repr__": lambda self: f"<torch.cuda.Stream {self.device} {self.cuda_stream:#x}>",
    }
    body = {"__module__": "torch.cuda.streams", **_stream_body(sim), **methods}
    stream = type("Stream", (), body)
    places = {
        "Stream": (stream, "torch.cuda.streams"),
        "ExternalStream": (stream, "torch.cuda.streams"),
        "Event": (event, "torch.cuda.streams"),
    }
    for name, (made, module) in places.items():
        undo.set(sim.cuda, name, made)
        undo.set(sys.modules[module], name, made)
    undo.set(sim.cuda.CUDAGraph, "__new__", refused_call(sim, "CUDAGraph"))


def _accepting(self: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: ``__new__`` did it."""


def _stream_body(sim: Simulation) -> dict[str, Any]:
    """Attributes of a stream: it has a number, a device, and nothing queued."""

    def new(
        cls: type,
        device: Any = None,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int | None = None,
        device_type: int = 1,
        stream_ptr: int = 0,
        **kwargs: Any,
    ) -> Any:
        sim.ensure()
        self: Any = object.__new__(cls)
        existing = device_index is not None
        self.stream_id = stream_id if existing else stream_ptr or next(sim.next_stream)
        self.device_index = device_index if existing else sim.index_of(device)
        self.device_type = device_type
        self.cuda_stream = self.stream_id
        self.priority = priority
        return self

    def enter(self: Any) -> Any:
        self._cudafork_previous = sim.stream(self.device_index)
        sim.set_stream(self.stream_id, self.device_index, self.device_type)
        return self

    def leave(self: Any, *exc: object) -> None:
        sim.set_stream(*self._cudafork_previous)

    return {
        "__new__": new,
        "__init__": _accepting,
        "__enter__": enter,
        "__exit__": leave,
        "__eq__": lambda self, other: _place(self) == _place(other),
        "__hash__": lambda self: hash(_place(self)),
        "device": property(lambda self: sim.torch.device("cuda", self.device_index)),
        "native_handle": property(lambda self: self.cuda_stream),
        "query": lambda self: True,
        # Nothing is ever captured; each step of an optimizer asks.
        "is_capturing": lambda self: False,
        "synchronize": lambda self: None,
        "priority_range": staticmethod(lambda: (0, -5)),
    }


def _place(stream: Any) -> tuple[int, int]:
    return stream.device_index, stream.stream_id


def _event_body(sim: Simulation) -> dict[str, Any]:
    """Attributes of an event: constructing one asks no driver; what it waits for is over."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        self: Any = object.__new__(cls)
        self.cuda_event = self.event_id = 0
        return self

    def record(self: Any, stream: Any = None) -> None:
        sim.ensure()

    return {
        "__new__": new,
        "__init__": _accepting,
        "device": property(lambda self: sim.torch.device("cuda", sim.device)),
        "record": record,
        "wait": record,
        "query": lambda self: True,
        "synchronize": lambda self: None,
        "elapsed_time": refused_call(sim, "Event.elapsed_time"),
        "ipc_handle": refused_call(sim, "Event.ipc_handle"),
        "from_ipc_handle": classmethod(refused_call(sim, "Event.from_ipc_handle")),
    }
