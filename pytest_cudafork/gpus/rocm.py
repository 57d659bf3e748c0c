"""AMD's GPUs and their memory, as the kernel's driver tells of them in /sys.

ROCm's own libraries (amdsmi, rocm_smi) read the same files. Only what waits for memory knows of
these GPUs; they are not leased to tests.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from pytest_cudafork.gpus.inventory import Gpu
from pytest_cudafork.gpus.nvml import DeviceMemory
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.gpu_requests import number_in_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

SYS = "/sys"
_KFD = "class/kfd/kfd"
_PREFIX = "KFD-"
"""What the names of these GPUs begin with, followed by the kernel's number of each."""
_UUID = "GPU-"


class RocmError(RuntimeError):
    """The kernel did not say how much memory is in use. Recoverable: then it is not known."""


def is_one(gpu: Gpu) -> bool:
    """Whether a GPU is one of AMD's."""
    return gpu.uuid.startswith(_PREFIX)


def visible_gpus(variables: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """Return AMD's GPUs that this process may use, in their order."""
    found = _all_gpus()
    for name in (environment.ROCR_MASK, environment.HIP_MASK):
        text = environment.optional(name) if variables is None else variables.get(name)
        if text is not None:
            found = _masked(text, found)
    return tuple(found)


def _masked(text: str, gpus: list[Gpu]) -> list[Gpu]:
    """Return the GPUs that a mask names by numbers or UUIDs, up to the first name of none."""
    uuids = [_uuid(gpu) for gpu in gpus]
    found: list[Gpu] = []
    for name in (part.strip() for part in text.split(",")):
        number = number_in_mask(name)
        if name.upper().startswith(_UUID):
            if not all(uuids):  # it could be any: what is not its own is better waited for, too
                return gpus
            number = uuids.index(name.upper()) if name.upper() in uuids else None
        if number is None or number >= len(gpus):
            break
        if gpus[number] not in found:
            found.append(gpus[number])
    return found


def _uuid(gpu: Gpu) -> str:
    """Return the UUID of a GPU as ROCm writes it; "" where the kernel does not tell."""
    try:
        number = int(_property(gpu.uuid.removeprefix(_PREFIX), "unique_id"))
    except (RocmError, ValueError):
        return ""
    return f"{_UUID}{number:016X}" if number else ""


def _all_gpus() -> list[Gpu]:
    nodes = os.path.join(SYS, _KFD, "topology", "nodes")
    found: list[Gpu] = []
    with contextlib.suppress(OSError):
        for node in sorted(filter(str.isdigit, os.listdir(nodes)), key=int):
            with contextlib.suppress(RocmError):
                number = _number(os.path.join(nodes, node, "gpu_id"))
                if number:  # 0: a CPU
                    name = _text(os.path.join(nodes, node, "name"))
                    found.append(Gpu(len(found), f"{_PREFIX}{number}", name))
    return found


def memory(gpu: Gpu) -> DeviceMemory:
    """Return what is in use on a GPU, in bytes, and by which processes.

    Raises:
        RocmError: the kernel does not say.

    """
    number = gpu.uuid.removeprefix(_PREFIX)
    used = _number(os.path.join(_drm_device(number), "mem_info_vram_used"))
    processes: dict[int, int | None] = {}
    folder = os.path.join(SYS, _KFD, "proc")
    with contextlib.suppress(OSError):
        for pid in filter(str.isdigit, os.listdir(folder)):
            with contextlib.suppress(RocmError):
                size = _number(os.path.join(folder, pid, f"vram_{number}"))
                if size:
                    processes[int(pid)] = size
    return DeviceMemory(used, processes)


def _drm_device(number: str) -> str:
    """Return the folder of a GPU, which the kernel's compute driver knows by another number."""
    minor = _property(number, "drm_render_minor")
    return os.path.join(SYS, "class/drm", f"renderD{minor}", "device")


def _property(number: str, name: str) -> str:
    """Return what the kernel's compute driver says of a GPU."""
    nodes = os.path.join(SYS, _KFD, "topology", "nodes")
    with contextlib.suppress(OSError):
        for node in os.listdir(nodes):
            with contextlib.suppress(RocmError, ValueError, IndexError):
                if str(_number(os.path.join(nodes, node, "gpu_id"))) == number:
                    properties = _text(os.path.join(nodes, node, "properties")).split()
                    return properties[properties.index(name) + 1]
    raise RocmError(f"the kernel shows no {name} of AMD GPU {number} in {nodes}")


def _number(path: str) -> int:
    try:
        return int(_text(path))
    except ValueError as error:
        raise RocmError(f"{path} holds no number: {error}") from None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        raise RocmError(f"the kernel does not say how much memory is in use: {error}") from None
