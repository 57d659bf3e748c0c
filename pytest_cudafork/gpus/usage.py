"""What a running test uses: memory of GPUs by all its processes, and RAM by its own.

The process that waits for an isolated test looks now and then; nothing runs beside it. GPUs are
looked at five times a second, so what is shorter is seen only by torch's own count of its peak.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cudafork.compat.unpatched import time
from pytest_cudafork.gpus import memory
from pytest_cudafork.process.descendants import leftovers

if TYPE_CHECKING:
    from pytest_cudafork.gpus.inventory import Gpu
    from pytest_cudafork.gpus.nvml import DeviceMemory

_LOOK_SECONDS = 0.2
_PEAK_LINE = b"VmHWM:"
_RESET_PEAK = "5"
"""What makes the kernel count the peak of a process's memory anew (proc(5), clear_refs)."""


class Usage:
    """The peaks of one test, as far as they were seen."""

    def __init__(
        self, gpus: Sequence[Gpu], before: Mapping[str, DeviceMemory] | None, *, alone: bool
    ) -> None:
        """``gpus`` in the order that the test counts them; ``alone``: no other test has them."""
        self._gpus = gpus
        self._before = before
        self._alone = alone
        self._next = 0.0
        self.vram = [0] * len(gpus)
        """Bytes on each GPU."""
        self.ram = 0

    def look(self, pid: int, cookie: bytes) -> None:
        """Look at the test's process and at what has its mark."""
        self.ram = max(self.ram, peak_of(pid))
        if not self._gpus or time.monotonic() < self._next:
            return
        found = memory.look(self._gpus)
        for place, gpu in enumerate(self._gpus):
            one = found[gpu.uuid]
            if not isinstance(one, memory.Unknown):
                self.vram[place] = max(self.vram[place], self._share(gpu, one, cookie))
        self._next = time.monotonic() + _LOOK_SECONDS

    def _share(self, gpu: Gpu, now: DeviceMemory, cookie: bytes) -> int:
        """Return what the test has of a GPU; where the driver hides processes, all that is new."""
        sizes = [
            size or 0 for pid, size in now.processes.items() if leftovers.is_marked(pid, cookie)
        ]
        if any(sizes) or now.processes or not self._alone or self._before is None:
            return sum(sizes)
        return max(0, now.used - self._before[gpu.uuid].used)

    def add(self, reserved: Sequence[int]) -> None:
        """Add what torch says it had reserved on each GPU that the test saw."""
        for place, size in enumerate(reserved[: len(self.vram)]):
            self.vram[place] = max(self.vram[place], size)

    @property
    def gpus_used(self) -> int:
        """How many GPUs a process needs to see that uses those that were used."""
        return max((place + 1 for place, size in enumerate(self.vram) if size), default=0)


def peak_of(pid: int) -> int:
    """Return the most RAM that a process has had, in bytes; 0 if it has ended."""
    for line in memory.content(pid, "status").splitlines():
        if line.startswith(_PEAK_LINE):
            return int(line.split()[1]) << 10
    return 0


def forget_peak() -> None:
    """Let the kernel count this process's peak anew, where it may."""
    with contextlib.suppress(OSError), open(f"/proc/{os.getpid()}/clear_refs", "w") as file:
        file.write(_RESET_PEAK)


def reserved_by_torch() -> list[int]:
    """Return what torch has had reserved on each GPU of this process, in bytes; [] if nothing.

    What stands in for torch, or for its functions, in a test may not know: then nothing is added.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or cuda.is_initialized() is not True:
            return []
        return [int(cuda.max_memory_reserved(place)) for place in range(cuda.device_count())]
    except Exception:
        return []
