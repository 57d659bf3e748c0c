"""Streams and events of ``torch.cuda`` on the software graph, where work runs at once.

What was issued has been done, in the order of the calls, so there is nothing to wait for. Within a
capture it is known which streams take part, and whether they are joined at its end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

import torch

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.meanwhile import variable_set
from pytest_cudafork.capture.software.capture_mode import CaptureMode
from pytest_cudafork.capture.stand_ins.capturing.forks import Forks
from pytest_cudafork.compat.torch_graphs.modes import active_modes
from pytest_cudafork.errors import GraphNotJudgedError

__tracebackhide__ = of_refusals


class Stream:
    """Stands for ``torch.cuda.Stream``; those of one number are equal, 0 is the default stream."""

    device_type = 1  # torch's number for CUDA

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_ptr: int | None = None,
        stream_id: int | None = None,
        device_index: int = 0,
        **kwargs: Any,
    ) -> None:
        existing = stream_id is not None
        self.device = _device_of(device_index if existing else device)
        self.device_index = self.device.index
        self.priority = priority
        number = stream_id if existing else stream_ptr
        self.stream_id = self.cuda_stream = id(self) if number is None else number
        self.native_handle = self.cuda_stream
        self._entered: list[stream] = []

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority, as an H200 has them."""
        return 0, -5

    def wait_event(self, event: Any) -> None:
        """Do nothing: what it stands for has happened. Within a capture, be forked or joined."""
        forks = _FORKS.get()
        if forks is not None:
            forks.waits(self, getattr(event, "mark", None))

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: its work is done. Within a capture, be forked or joined."""
        forks = _FORKS.get()
        if forks is not None:
            forks.waits(self, forks.recorded(stream))

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has happened."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: it is."""
        _refuse_within_capture("Stream.query")
        return True

    def synchronize(self) -> None:
        """Do nothing: all work is done."""
        _refuse_within_capture("Stream.synchronize")

    def is_capturing(self) -> bool:
        """Whether it takes part in a capture that is under way."""
        forks = _FORKS.get()
        return forks is not None and forks.takes_part(self)

    @staticmethod
    @contextlib.contextmanager
    def within_capture(mode: CaptureMode) -> Iterator[None]:
        """Capture the current stream, for the length of a ``with``; not the default one."""
        now, refusals = current_stream(), mode.refusals
        origin = Stream() if now == default_stream() else now
        forks = Forks(origin, lambda: mode.recorder.nodes, refusals)
        with stream(origin), variable_set(_FORKS, forks):
            yield
            if refusals.first is None:
                refusals.first = forks.at_end()

    def __enter__(self) -> Stream:
        self._entered.append(stream(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered.pop().__exit__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream {self.cuda_stream:#x} of the software graph>"


class ExternalStream(Stream):
    """Stands for ``torch.cuda.ExternalStream``."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr, **kwargs)


class Event:
    """Stands for ``torch.cuda.Event``: it happens when it is recorded."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        *,
        device: Any = None,
    ) -> None:
        self.device = _device_of(device)
        self.event_id = self.cuda_event = id(self)
        self._timed = enable_timing
        self._at: float | None = None
        self.mark: Any = None  # of the capture that it was recorded in

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        forks = _FORKS.get()
        self.mark = None if forks is None else forks.recorded(stream or current_stream())
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: it has happened. Within a capture, fork or join the stream."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether it has happened: it has."""
        _refuse_within_capture("Event.query")
        return True

    def synchronize(self) -> None:
        """Do nothing: it has happened."""
        _refuse_within_capture("Event.synchronize")

    def elapsed_time(self, end_event: Event) -> float:
        """Return the time from this event to another in milliseconds, as it passed on the host."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1000

    def ipc_handle(self) -> NoReturn:
        """Refuse: another process cannot wait for it."""
        refuse("Event.ipc_handle()", "there is no event of the CUDA driver")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> NoReturn:
        """Refuse: there is no event of another process."""
        refuse("Event.from_ipc_handle()", "there is no event of the CUDA driver")


class _OfAnyDevice(type):
    """Makes stand-ins for what is on a GPU, or on no device that is named; the rest is torch's."""

    original: type
    on_gpu: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None) if not args else args[0]
        named = device is not None and not isinstance(device, int)
        if named and torch.device(device).type != "cuda":
            return cls.original(device, *args[1:], **kwargs)
        return cls.on_gpu(*args[1:], device=device, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (cls.on_gpu, cls.original))


class AnyStream(metaclass=_OfAnyDevice):
    """Stands for ``torch.Stream``, which ``torch.cuda.Stream`` is derived from."""

    original = torch.Stream
    on_gpu = Stream


class AnyEvent(metaclass=_OfAnyDevice):
    """Stands for ``torch.Event``, which ``torch.cuda.Event`` is derived from."""

    original = getattr(torch, "Event", object)  # older releases have none
    on_gpu = Event


class stream:  # as torch writes it
    """Stands for ``torch.cuda.stream``: a ``with`` whose current stream it is."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._before = _CURRENT.get()
        if self.stream is not None:
            set_stream(self.stream)

    def __exit__(self, *exc: object) -> None:
        set_stream(self._before)


def synchronize(device: Any = None) -> None:
    """Do nothing: all work is done."""


def current_stream(device: Any = None) -> Any:
    """Return the stream of the innermost ``with``, else the default one."""
    found = _CURRENT.get()
    return default_stream(device) if found is None else found


def default_stream(device: Any = None) -> Stream:
    """Return the stream of number 0."""
    return Stream(device, stream_ptr=0)


def set_stream(stream: Any) -> None:
    """Let this be the current stream; it does not change where work is done."""
    _CURRENT.set(stream)
    forks = _FORKS.get()
    if forks is not None:
        forks.switched(current_stream())


_CURRENT: ContextVar[Any] = ContextVar("cudafork_stream_of_software_graph", default=None)
_FORKS: ContextVar[Forks | None] = ContextVar("cudafork_forks_of_capture", default=None)


def _device_of(device: Any) -> torch.device:
    """Return the GPU that is meant; without a number, or with none at all, the first one."""
    index = device if isinstance(device, int) else torch.device(device or "cuda").index
    return torch.device("cuda", index or 0)


def refuse(call: str, why: str) -> NoReturn:
    """Refuse what the software graph has nothing for, by its name."""
    raise GraphNotJudgedError(
        f"{call} cannot be done by the software graph, which stands for torch.cuda here: {why}. "
        "Test this with the backend 'cuda', on a machine with a GPU"
    )


def current_capture() -> CaptureMode | None:
    """Return the capture that is under way in this thread."""
    return next((mode for mode in active_modes() if isinstance(mode, CaptureMode)), None)


def _refuse_within_capture(call: str) -> None:
    mode = current_capture()
    if mode is not None:
        mode.refusals.wait(call)
