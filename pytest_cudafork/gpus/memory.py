"""The device memory that a test leaves behind: who still holds it when the test has ended.

A process belongs to a test if it carries the test's mark: in the environment it was started with,
or, where it was forked without exec, in its memory. Whoever else uses a GPU carries no mark and is
never blamed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.compat.unpatched import time
from pytest_cudafork.gpus import rocm
from pytest_cudafork.gpus.nvml import DeviceMemory, Nvml, NvmlError, open_nvml
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.settings import environment

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
_TEST_FOLLOWS = "+test="
_LONGEST_NAME = 240
"""The kernel takes 249 bytes as the name of a memory file."""


class Leftover(NamedTuple):
    """Memory on one GPU that a process holds; None bytes: not told.

    ``test`` is the one that started the process, "" if that is not known or needs no telling.
    """

    gpu: int
    pid: int
    command: str
    held: int | None
    test: str = ""

    def __str__(self) -> str:
        size = "memory" if self.held is None else f"{self.held / _MIB:.0f} MiB"
        by = f", started by {self.test}" if self.test else ""
        return f"process {self.pid} ({self.command}) holds {size} on GPU {self.gpu}{by}"


class Unknown(NamedTuple):
    """Why nobody can tell how much memory of a GPU is in use."""

    why: str


def look(gpus: Sequence[Gpu]) -> dict[str, DeviceMemory | Unknown]:
    """Ask what is in use on these GPUs, each by itself: NVML refuses some MIG instances."""
    found: dict[str, DeviceMemory | Unknown] = {}
    with contextlib.ExitStack() as opened:
        nvml: Nvml | None = None
        for gpu in gpus:
            try:
                if rocm.is_one(gpu):
                    found[gpu.uuid] = rocm.memory(gpu)
                    continue
                if nvml is None:
                    nvml = opened.enter_context(open_nvml())
                found[gpu.uuid] = nvml.memory(gpu.uuid)
            except (NvmlError, rocm.RocmError) as error:
                found[gpu.uuid] = Unknown(str(error))
    return found


def measure(gpus: Sequence[Gpu]) -> Memory | None:
    """Ask what is in use on these GPUs; None where nobody tells of one of them."""
    found = look(gpus)
    known = {uuid: one for uuid, one in found.items() if isinstance(one, DeviceMemory)}
    return known if len(known) == len(found) else None


def put_mark(mark: str, test: str = "") -> mmap.mmap:
    """Mark this process, and all it forks, as the test's; keep what is returned.

    A mapping, for it stays in a descendant that closes all descriptors as daemons do.
    """
    import mmap
    from urllib.parse import quote

    told = quote(test, errors="backslashreplace")  # the name of its file may be none of UTF-8
    name = f"{mark}{_TEST_FOLLOWS}{told}" if test else mark
    fd = os.memfd_create(name[:_LONGEST_NAME], os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _PAGE_BYTES)
        return mmap.mmap(fd, _PAGE_BYTES)
    finally:
        os.close(fd)


def has_mark(pid: int, mark: str) -> bool:
    """Whether a living process carries the mark; False for those we may not look into."""
    return any(mark.encode() in content(pid, name) for name in ("environ", "maps"))


def test_of(pid: int) -> str:
    """Return the test that started a process, "" if it was none or that cannot be told."""
    return _begun_in(pid)[0]


def phase_of(pid: int) -> str:
    """Return the phase of a test in which a process was started, "" if that is not known."""
    return _begun_in(pid)[1]


def _begun_in(pid: int) -> tuple[str, str]:
    """What was forked by a test with GPUs has its mark in memory, what it started by exec has not.

    To those pytest leaves the name of the test in their environment.
    """
    for line in content(pid, "maps").splitlines():
        _, follows, name = line.partition(_TEST_FOLLOWS.encode())
        if follows and b"/memfd:cudafork-" in line:
            from urllib.parse import unquote

            return unquote(name.removesuffix(b" (deleted)").decode("ascii", "replace")), ""
    for part in content(pid, "environ").split(b"\0"):
        variable, _, value = part.partition(b"=")
        if variable == environment.TEST.encode():  # "path::test (call)"
            test, _, phase = value.decode("utf-8", "replace").rpartition(" (")
            return test, phase.removesuffix(")")
    return "", ""


def holders(gpu: Gpu, memory: DeviceMemory, *, but: Collection[int] = ()) -> list[Leftover]:
    """Return who holds memory on a GPU, as far as the driver or the kernel tells."""
    found: dict[int, int | None] = dict(memory.processes)
    if not found and memory.used:
        found = dict.fromkeys(_users_of_a_gpu())  # the driver hides them, as in many containers
    return [
        Leftover(gpu.number, pid, command_of(pid), size, test_of(pid))
        for pid, size in found.items()
        if pid not in but and process_state.lives(pid)
    ]


def content(pid: int, file_name: str) -> bytes:
    """Return a file of a process in /proc; b"" if it has ended or is another user's."""
    try:
        with open(f"/proc/{pid}/{file_name}", "rb") as file:
            return file.read()
    except OSError:  # ended, or another user's
        return b""


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
        Leftover(gpu.number, pid, command_of(pid), size)
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


def command_of(pid: int) -> str:
    """The command line of a process, shortened."""
    text = " ".join(process_state.program_of(pid).split())
    return text[:77] + "..." if len(text) > 80 else text or "command not known"


def describe(found: Sequence[Leftover]) -> str:
    """Say what was left behind and what to do."""
    return (
        "device memory is still allocated after the process of this test has ended: "
        f"{'; '.join(map(str, found))}. It is ended now, for the next test needs the memory: end "
        "what the test starts before it ends."
    )
