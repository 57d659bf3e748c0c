"""What is asked of GPUs before anybody may touch one: how many, which, how large.

It never asks the CUDA driver or runtime: a process that has asked them can no longer fork an engine
core. It asks NVML (``pynvml``, an optional library), else ``nvidia-smi``, else the kernel module's
files in /proc. It keeps nothing between two questions.

GPUs are counted as CUDA counts them under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Without that variable
CUDA puts the fastest first, which is the same order on a machine whose GPUs are all alike.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from sample_engine.errors import ConfigError

__all__ = [
    "Gpu",
    "Gpus",
    "device_capability",
    "gpu_count",
    "parse_smi",
    "total_memory",
    "visible_gpus",
    "why_no_gpu",
]

_VISIBLE_ENV = "CUDA_VISIBLE_DEVICES"
_PROC = "/proc/driver/nvidia/gpus"
_DEVICE_FILE = "/dev/nvidiactl"
_SMI_SECONDS = 20
_Fact = TypeVar("_Fact")
_SMI_FIELDS = ("index", "uuid", "name", "compute_cap", "memory.total")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One device that CUDA can show a process: a GPU, or an instance of one in MIG mode.

    ``number`` is the one ``nvidia-smi`` shows; an instance has that of its GPU. ``capability`` and
    ``total_memory`` (bytes) are None where only the kernel's files could be read.
    """

    number: int
    uuid: str
    name: str
    capability: tuple[int, int] | None = None
    total_memory: int | None = None
    mig: bool = False


@dataclasses.dataclass(frozen=True)
class Gpus:
    """The GPUs of the machine or of this process; where there are none, ``why_none`` says why.

    ``source`` is who told: ``"pynvml"``, ``"nvidia-smi"``, ``"/proc"`` or ``""``.
    """

    devices: tuple[Gpu, ...]
    source: str = ""
    why_none: str = ""


def gpu_count() -> int:
    """Count the GPUs that CUDA would show this process, ``CUDA_VISIBLE_DEVICES`` respected."""
    return len(visible_gpus().devices)


def why_no_gpu() -> str:
    """Say why this process sees no GPU; "" if it sees one."""
    return visible_gpus().why_none


def device_capability(index: int = 0) -> tuple[int, int]:
    """Return the compute capability of the GPU that CUDA shows as ``index``.

    Raises :class:`ConfigError` if there is no such GPU, or nobody here knows its capability.
    """
    return _known(index, "compute capability", lambda gpu: gpu.capability)


def total_memory(index: int = 0) -> int:
    """Return the memory in bytes of the GPU that CUDA shows as ``index``; raises as above."""
    return _known(index, "memory", lambda gpu: gpu.total_memory)


def visible_gpus(machine: Gpus | None = None, text: str | None = None) -> Gpus:
    """The GPUs that CUDA would show this process, in its order.

    Args:
        machine: all GPUs; None: ask this machine.
        text: a value of ``CUDA_VISIBLE_DEVICES``; None: that of the environment.

    """
    if text is None:
        text = os.environ.get(_VISIBLE_ENV)
    machine = _machine() if machine is None else machine
    if not machine.devices:
        return machine
    shown = _one_instance(_named(text, machine.devices) if text is not None else machine.devices)
    if shown:
        return dataclasses.replace(machine, devices=shown)
    names = ", ".join(f"{gpu.number} ({gpu.uuid})" for gpu in machine.devices)
    why = f"{_VISIBLE_ENV}={text!r} shows none of the machine's GPUs, which are: {names}"
    return Gpus((), machine.source, why)


def _device(index: int) -> Gpu:
    gpus = visible_gpus()
    if 0 <= index < len(gpus.devices):
        return gpus.devices[index]
    if not gpus.devices:
        raise ConfigError(f"There is no GPU {index}: {gpus.why_none}.")
    count = len(gpus.devices)
    have = "1 GPU, number 0" if count == 1 else f"{count} GPUs, numbers 0 to {count - 1}"
    visible = os.environ.get(_VISIBLE_ENV)
    limit = "" if visible is None else f" ({_VISIBLE_ENV}={visible!r})"
    raise ConfigError(f"There is no GPU {index}: this process sees {have}{limit}.")


def _known(index: int, what: str, get: Callable[[Gpu], _Fact | None]) -> _Fact:
    gpu = _device(index)
    value = get(gpu)
    if value is None:
        raise ConfigError(
            f"The {what} of GPU {index} ({gpu.name}) is not known: neither pynvml nor nvidia-smi "
            "told it here. Install nvidia-ml-py."
        )
    return value


def _named(text: str, devices: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Read ``CUDA_VISIBLE_DEVICES`` as CUDA does.

    Numbers, or UUIDs, or beginnings of UUIDs that fit one device. What follows the first name of no
    device is not read; a device that is named twice leaves none.
    """
    found: list[Gpu] = []
    for name in (part.strip() for part in text.split(",")):
        digits = re.match(r"\+?(\d+)", name)
        if digits is not None:
            matching = [gpu for gpu in devices if gpu.number == int(digits[1])]
            del matching[1:]  # of a GPU's MIG instances, a number shows the first
        elif name.upper().startswith(("GPU-", "MIG-")):
            matching = [gpu for gpu in devices if gpu.uuid.lower().startswith(name.lower())]
        else:
            break
        if len(matching) != 1:
            break
        if matching[0] in found:
            return ()
        found += matching
    return tuple(found)


def _one_instance(devices: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """CUDA shows a process one MIG instance, and then no other device."""
    first = next((gpu for gpu in devices if gpu.mig), None)
    if first is None:
        return devices
    whole = tuple(gpu for gpu in devices if not gpu.mig)
    return (first,) if devices[0].mig else whole


def _machine() -> Gpus:
    """Ask everybody who may know, best first, until one has seen a GPU."""
    why = []
    for source, ask in (("pynvml", _ask_pynvml), ("nvidia-smi", _ask_smi), ("/proc", _ask_proc)):
        try:
            devices = tuple(ask())
        except _NotHere as error:
            why.append(str(error))
            continue
        if devices:
            return Gpus(devices, source)
        why.append(f"{source} lists no GPU")
    return Gpus((), "", "; ".join(why))


class _NotHere(Exception):
    """A source that cannot be asked here."""


def _ask_pynvml() -> list[Gpu]:
    try:
        import pynvml
    except ImportError:
        raise _NotHere("pynvml is not installed") from None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        raise _NotHere(f"NVML cannot be asked ({error})") from None
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [gpu for number in range(count) for gpu in _nvml_devices(pynvml, number)]
    except pynvml.NVMLError as error:
        raise _NotHere(f"NVML failed ({error})") from None
    finally:
        pynvml.nvmlShutdown()


def _nvml_devices(nvml: Any, number: int) -> Iterator[Gpu]:
    """The GPU of that number, or its instances where it is in MIG mode."""
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))

    def device(handle: Any, *, mig: bool) -> Gpu:
        try:
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except nvml.NVMLError_NotSupported:  # a GPU that shares the memory of its host
            memory = None
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        return Gpu(number, _text(uuid), _text(name), capability, memory, mig)

    try:
        mig_mode = nvml.nvmlDeviceGetMigMode(handle)[0]
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        mig_mode = 0
    if not mig_mode:
        yield device(handle, mig=False)
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        yield device(instance, mig=True)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _ask_smi() -> list[Gpu]:
    query = _run_smi(f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits")
    return parse_smi(query, _run_smi("-L"))


def _run_smi(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SMI_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise _NotHere("there is no nvidia-smi") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NotHere(f"nvidia-smi cannot be asked ({error})") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
        raise _NotHere(f"nvidia-smi failed ({said[0] if said else done.returncode})")
    return done.stdout.decode("utf-8", "replace")


def parse_smi(query: str, listing: str) -> list[Gpu]:
    """Read the answers of ``nvidia-smi`` to ``--query-gpu`` and to ``-L`` (MIG instances)."""
    devices: list[Gpu] = []
    instances = _smi_instances(listing.splitlines())
    for line in query.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_SMI_FIELDS) or not cells[0].isdigit():
            continue
        digits = re.fullmatch(r"(\d+)\.(\d+)", cells[3])
        capability = (int(digits[1]), int(digits[2])) if digits else None
        memory = int(cells[4]) << 20 if cells[4].isdigit() else None
        number = int(cells[0])
        parts = instances.get(number, [])
        devices += [
            Gpu(number, uuid, f"{cells[2]} MIG {profile}", capability, None, mig=True)
            for uuid, profile in parts
        ]
        if not parts:
            devices.append(Gpu(number, cells[1], cells[2], capability, memory))
    return devices


def _smi_instances(lines: Iterable[str]) -> dict[int, list[tuple[str, str]]]:
    """UUIDs and profiles of the MIG instances of each GPU that has some."""
    found: dict[int, list[tuple[str, str]]] = {}
    number = -1
    for line in lines:
        gpu = re.match(r"GPU (\d+):", line)
        instance = re.match(r"\s+MIG (\S+)\s.*\(UUID: (MIG-\S+)\)", line)
        if gpu:
            number = int(gpu[1])
        elif instance and number >= 0:
            found.setdefault(number, []).append((instance[2], instance[1]))
    return found


def _ask_proc() -> list[Gpu]:
    try:
        addresses = sorted(os.listdir(_PROC))
    except OSError:
        raise _NotHere(f"there is no {_PROC}: no NVIDIA kernel module is loaded") from None
    if not os.path.exists(_DEVICE_FILE):  # a container shows what its machine has
        raise _NotHere(f"{_PROC} is there, but no {_DEVICE_FILE}: this container was given no GPU")
    found = []
    for number, address in enumerate(addresses):
        facts: dict[str, str] = {}
        try:
            with open(os.path.join(_PROC, address, "information"), encoding="utf-8") as file:
                for line in file:
                    key, _, value = line.partition(":")
                    facts[key.strip()] = value.strip()
        except OSError:
            pass  # a GPU that is being reset has no such file: it is there, and nothing is known
        uuid = facts.get("GPU UUID", "")
        # The kernel shows question marks for a GPU that nobody has used since it was started.
        known = uuid.startswith("GPU-") and "?" not in uuid
        name = facts.get("Model", "an NVIDIA GPU")
        found.append(Gpu(number, uuid if known else f"PCI-{address}", name))
    return found
