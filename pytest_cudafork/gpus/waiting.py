"""Waiting until memory of GPUs is back, and naming who holds it if it is not.

Nothing of CUDA is initialized by this: NVML is asked, or the kernel for AMD's GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_cudafork.compat.unpatched import time
from pytest_cudafork.errors import GpuBusyError
from pytest_cudafork.gpus import memory, rocm
from pytest_cudafork.gpus.inventory import Machine, phantom_machine, real_machine, take_inventory
from pytest_cudafork.gpus.memory import Leftover, Unknown
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.devices import ABSENT
from pytest_cudafork.settings.gpu_requests import GpuChoice
from pytest_cudafork.settings.real_driver import has_real_driver
from pytest_cudafork.settings.sizes import spell_size

if TYPE_CHECKING:
    from pytest_cudafork.gpus.inventory import Gpu
    from pytest_cudafork.gpus.nvml import DeviceMemory

_LOOK_SECONDS = 0.05


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use: NVIDIA's, a phantom's or AMD's."""
    face = environment.value(environment.FACE)
    if face and face != ABSENT:
        machine = phantom_machine(face)
    elif has_real_driver():
        machine = real_machine()
    else:
        return rocm.visible_gpus()
    return take_inventory(machine, GpuChoice()).visible


def unknown_machine() -> list[str]:
    """Return why it is not known which GPUs there are; [] if it is. Asked where none is found.

    That is so where a driver is there, NVML does not answer, and the kernel shows none, as on
    Jetson and in some sandboxes.
    """
    face = environment.value(environment.FACE)
    mask = environment.optional(environment.VISIBLE_GPUS)
    hidden = mask is not None and mask.strip() in ("", "-1")
    if (face and face != ABSENT) or hidden or not has_real_driver():
        return []
    why = real_machine().unknown
    return [f"which GPUs there are: {why}"] if why else []


def chosen_gpus(names: Iterable[int | str]) -> tuple[Gpu, ...]:
    """Return those of the visible GPUs that CUDA counts by these numbers, or of these UUIDs.

    Raises:
        ValueError: there is none of such a name; the message lists what there is.

    """
    visible = visible_gpus()
    by_uuid = take_inventory(Machine(visible), GpuChoice(), {}).visible
    found = []
    for name in names:
        matching = [
            gpu
            for place, gpu in enumerate(by_uuid)
            if (isinstance(name, int) and not isinstance(name, bool) and place == name)
            or (isinstance(name, str) and name and gpu.uuid.lower().startswith(name.lower()))
        ]
        if len(matching) != 1:
            known = ", ".join(f"{place} ({gpu.uuid})" for place, gpu in enumerate(visible))
            there = f"there are {known}" if known else "it may use none"
            raise ValueError(f"{name!r} names no GPU that this process may use: {there}")
        found += matching
    return tuple(found)


def until_idle(
    gpus: Sequence[Gpu],
    allowed: Mapping[str, int],
    timeout: float,
    *,
    own: bool = False,
    end: Callable[[Sequence[Leftover]], None] | None = None,
) -> list[str]:
    """Wait until no more than is allowed is in use.

    Args:
        gpus: which ones.
        allowed: bytes by UUID.
        timeout: seconds.
        own: whether what this process itself holds counts, too.
        end: is told of the holders while one waits, and may end those that are its own.

    Returns:
        Of which GPUs nobody can tell, and why.

    Raises:
        GpuBusyError: it is not back in time; names who holds it.

    """
    start = time.monotonic()
    but = () if own else (os.getpid(),)
    while True:
        found = memory.look(gpus)
        busy = [
            (gpu, one)
            for gpu in gpus
            if not isinstance(one := found[gpu.uuid], Unknown)
            and _in_use(one, but) > allowed[gpu.uuid]
        ]
        if not busy:
            return unknown_of(gpus, found)
        held = [one for gpu, used in busy for one in memory.holders(gpu, used, but=but)]
        if end is not None:
            end(held)
        if time.monotonic() - start >= timeout:
            sizes = [(gpu, _in_use(used, but)) for gpu, used in busy]
            raise GpuBusyError(_complaint(sizes, allowed, held, timeout))
        time.sleep(_LOOK_SECONDS)


def until_released(pids: Collection[int], gpus: Sequence[Gpu], timeout: float) -> list[str]:
    """Wait until these processes have ended and hold no memory of a GPU; a zombie has ended.

    Returns:
        Of which GPUs nobody can tell, and why.

    Raises:
        GpuBusyError: they do not in time; names who still does.

    """
    start = time.monotonic()
    while True:
        found = memory.look(gpus)
        living = [pid for pid in pids if process_state.lives(pid)]
        held = [
            Leftover(gpu.number, pid, memory.command_of(pid), used.processes[pid])
            for gpu in gpus
            if not isinstance(used := found[gpu.uuid], Unknown)
            for pid in pids
            if pid in used.processes
        ]
        if not living and not held:
            return unknown_of(gpus, found)
        if time.monotonic() - start >= timeout:
            told = [str(one) for one in held]
            told += [
                f"process {pid} ({memory.command_of(pid)}) has not ended"
                for pid in living
                if pid not in [one.pid for one in held]
            ]
            raise GpuBusyError(f"after {timeout:g} s: {'; '.join(told)}")
        time.sleep(_LOOK_SECONDS)


def _in_use(used: DeviceMemory, but: Collection[int]) -> int:
    return used.used - sum(used.processes.get(pid) or 0 for pid in but)


def unknown_of(gpus: Sequence[Gpu], found: Mapping[str, DeviceMemory | Unknown]) -> list[str]:
    """Return of which GPUs nobody can tell, and why."""
    return [
        f"GPU {gpu.number} ({gpu.uuid}): {one.why}"
        for gpu in gpus
        if isinstance(one := found[gpu.uuid], Unknown)
    ]


def words_of_unknown(unknown: Sequence[str]) -> str:
    """Say that nobody can tell of some GPUs."""
    return f"it is not known whether memory of a GPU is back: {'; '.join(unknown)}"


def _complaint(
    busy: Sequence[tuple[Gpu, int]],
    allowed: Mapping[str, int],
    held: Sequence[Leftover],
    timeout: float,
) -> str:
    parts = [
        f"GPU {gpu.number} has {spell_size(size)} in use (allowed: {spell_size(allowed[gpu.uuid])})"
        for gpu, size in busy
    ]
    who = "; ".join(map(str, held)) or "who holds it, neither the driver nor the kernel tells"
    return f"after {timeout:g} s {', '.join(parts)}: {who}"
