"""Stands in for the simulation behind torch's present face: notes what is asked of it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from pytest_cudafork.observe.torch.refusals import refusal

FACE = "sm_90x2"


class Simulated:
    """Two GPUs that answer without torch."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.device = 0
        self.devices = 2
        self.initialized = False
        self.in_bad_fork = False
        self.arch_flags = "sm_80 sm_90"
        self.memory = (7, 7)
        self.dtypes = {"supported_dtypes": {"float"}}
        self.next_stream = itertools.count(1)
        self.torch: Any = SimpleNamespace(
            device=lambda *args: ("device", *args),
            cuda=SimpleNamespace(
                current_stream=lambda device: ("stream", device),
                set_stream=lambda stream: self.asked.append(f"set {stream}"),
            ),
        )
        self.core: Any = SimpleNamespace()
        self.cuda: Any = SimpleNamespace()
        self.streams: dict[int, tuple[int, int, int]] = {}

    def ensure(self) -> None:
        """Note that torch would initialize CUDA."""
        self.asked.append("ensure")
        self.initialized = True

    def probe(self, entry: str) -> None:
        """Note that the driver would be initialized."""
        self.asked.append(entry)

    def init(self) -> str:
        """Answer as ``_cuda_init``."""
        return "init"

    def count(self) -> int:
        """Answer as ``_cuda_getDeviceCount``."""
        return self.devices

    def select(self, device: int) -> None:
        """Make a device current."""
        self.device = device

    def index_of(self, device: Any) -> int:
        """Return the index of a device, the current one for None."""
        return self.device if device is None else int(device)

    def stream(self, device: int) -> tuple[int, int, int]:
        """Return the current stream of a device."""
        return self.streams.get(device, (0, device, 1))

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        """Make a stream current."""
        self.streams[device_index] = (stream_id, device_index, device_type)

    def refusal(self, what: str) -> RuntimeError:
        """Return the error for what only a GPU can do."""
        return refusal(what, FACE)
