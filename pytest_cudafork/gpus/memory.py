"""The device memory that a test leaves behind: who still holds it when the test has ended.

A process belongs to a test if it carries the test's mark: in the environment it was started with,
or, where it was forked without exec, in its memory. Whoever else uses a GPU carries no mark and is
never blamed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.gpus.nvml import DeviceMemory, NvmlError, open_nvml

if TYPE_CHECKING:
    import mmap

    from pytest_cudafork.gpus.inventory import Gpu

Memory = Mapping[str, DeviceMemory]
"""What is in use, by the UUID of the device."""

_MIB = 1 << 20
_SLACK_BYTES = 16 * _MIB
"""By how much a device's own use goes up and down while nothing happens on it."""
_SETTLE_SECONDS = 2.0
"""How long the memory of a process that was just killed may take to be freed."""
_LOOK_SECONDS = 0.05
_PAGE_BYTES = 4096


class Leftover(NamedTuple):
    """Memory on one GPU that a process of the test still holds; None bytes: not told."""

    gpu: int
    pid: int
    command: str
    held: int | None

    def __str__(self) -> str:
        size = "memory" if self.held is None else f"{self.held / _MIB:.0f} MiB"
        return f"process {self.pid} ({self.command}) holds {size} on GPU {self.gpu}"


def measure(gpus: Sequence[Gpu]) -> Memory | None:
    """Ask NVML what is in use on these GPUs; None where it does not answer."""
    try:
        with open_nvml() as nvml:
            return {gpu.uuid: nvml.memory(gpu.uuid) for gpu in gpus}
    except NvmlError:
        return None


def put_mark(mark: str) -> mmap.mmap:
    """Mark this process, and all it forks, as the test's; keep what is returned.

    A mapping, for it stays in a descendant that closes all descriptors as daemons do.
    """
    import mmap

    fd = os.memfd_create(mark, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _PAGE_BYTES)
        return mmap.mmap(fd, _PAGE_BYTES)
    finally:
        os.close(fd)


def has_mark(pid: int, mark: str) -> bool:
    """Whether a living process carries the mark; False for those we may not look into."""
    for file_name in ("environ", "maps"):
        try:
            with open(f"/proc/{pid}/{file_name}", "rb") as file:
                if mark.encode() in file.read():
                    return True
        except OSError:  # ended, or another user's
            return False
    return False


def left_behind(gpus: Sequence[Gpu], before: Memory, mark: str) -> list[Leftover]:
    """Return who holds memory on these GPUs though the test has ended.

    Waits a moment for processes that are ending just now.

    Args:
        gpus: those that the test had.
        before: what was in use when it began.
        mark: what its processes carry.

    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        after = measure(gpus)
        if after is None:
            return []
        found = [one for gpu in gpus for one in _leftovers(gpu, before, after, mark)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_SECONDS)


def _leftovers(gpu: Gpu, before: Memory, after: Memory, mark: str) -> list[Leftover]:
    was, now = before[gpu.uuid], after[gpu.uuid]
    new = {pid: size for pid, size in now.processes.items() if pid not in was.processes}
    if not now.processes and now.used > was.used + _SLACK_BYTES:
        # The driver hides the processes, as in many containers. We may still see them ourselves.
        new = dict.fromkeys(_users_of_a_gpu())
    return [
        Leftover(gpu.number, pid, _command(pid), size)
        for pid, size in new.items()
        if has_mark(pid, mark)
    ]


def _users_of_a_gpu() -> list[int]:
    """The processes that have the device file of a GPU open, as far as we may look."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                target = os.readlink(f"/proc/{name}/fd/{fd}")
                if target.removeprefix("/dev/nvidia").isdigit():
                    found.append(int(name))
                    break
    return found


def _command(pid: int) -> str:
    """The command line of a process, shortened."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode("utf-8", "replace").split()
    except OSError:
        words = []
    text = " ".join(words)
    return text[:77] + "..." if len(text) > 80 else text or "command not known"


def describe(found: Sequence[Leftover]) -> str:
    """Say what was left behind and what to do."""
    return (
        "device memory is still allocated after the process of this test has ended: "
        f"{'; '.join(map(str, found))}. It is ended now, for the next test needs the memory: end "
        "what the test starts before it ends."
    )
