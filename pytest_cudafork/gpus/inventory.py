"""The GPUs that a session's tests may use; which of them are free, the locks tell.

NVML is asked, never the CUDA runtime, so nothing is initialized in the pytest process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_cudafork.settings import environment
from pytest_cudafork.settings.gpu_requests import AUTO, GpuChoice

PCI_ORDER = "PCI_BUS_ID"
_PROC = "/proc/driver/nvidia/gpus"


class Gpu(NamedTuple):
    """One device that a test can have.

    ``number`` is the one nvidia-smi shows; a MIG instance has that of its GPU. ``uuid`` names
    it in every process of the host.
    """

    number: int
    uuid: str
    name: str = ""
    mig: bool = False

    @property
    def visible_as(self) -> str:
        """What stands for it in CUDA_VISIBLE_DEVICES, if CUDA counts in the order of the bus."""
        return self.uuid if self.mig else str(self.number)


class Machine(NamedTuple):
    """All GPUs of the machine, and where there are none, why."""

    gpus: tuple[Gpu, ...]
    why_none: str = ""


class Inventory(NamedTuple):
    """The GPUs that this session may use, in the order in which they are given away.

    ``visible`` are all that the session was given, those that the option leaves out among them.
    """

    gpus: tuple[Gpu, ...]
    visible: tuple[Gpu, ...]
    machine: Machine
    choice: GpuChoice = GpuChoice()
    visible_text: str | None = None

    def candidates(self, n: int) -> tuple[Gpu, ...]:
        """The GPUs that can be among `n` for one process; of MIG instances CUDA shows it one."""
        return self.gpus if n == 1 else tuple(gpu for gpu in self.gpus if not gpu.mig)

    def shortage(self, n: int) -> str:
        """Say why a test can never have `n` GPUs here, "" if it can."""
        have = len(self.candidates(n))
        if have >= n:
            return ""
        needs = f"needs {_gpus(n)}"
        if not self.machine.gpus:
            return f"{needs}; this machine has none ({self.machine.why_none})"
        text = f"{needs}; this session has {have}"
        if have < len(self.gpus):
            text += (
                f" beside {_count(len(self.gpus) - have, 'MIG instance')}, of which CUDA shows a "
                "process one"
            )
        limits = [f"the machine has {len(self.machine.gpus)}"]
        if self.choice.text != AUTO:
            limits.append(f"--cuda-fork-gpus={self.choice.text}")
        if self.visible_text is not None:
            limits.append(f"{environment.VISIBLE_GPUS}={self.visible_text}")
        return f"{text} ({', '.join(limits)})"


def take_inventory(
    machine: Machine, choice: GpuChoice, variables: Mapping[str, str] | None = None
) -> Inventory:
    """Work out which of the machine's GPUs the session may use. Pure but for the environment."""
    if variables is not None:
        text = variables.get(environment.VISIBLE_GPUS)
    else:
        text = environment.optional(environment.VISIBLE_GPUS)
    visible = machine.gpus if text is None else visible_gpus(text, machine.gpus)
    if choice.names:
        chosen = tuple(gpu for gpu in visible if any(_is_named(gpu, one) for one in choice.names))
    else:
        chosen = visible[: choice.most]
    return Inventory(chosen, visible, machine, choice, text)


def visible_gpus(text: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Read a value of CUDA_VISIBLE_DEVICES as CUDA does, in the order of the bus.

    What follows the first name of no GPU is not read; a GPU that is named twice leaves none.
    """
    found: list[Gpu] = []
    for name in (part.strip() for part in text.split(",")):
        matching = [gpu for gpu in gpus if _is_named(gpu, name)]
        if not matching or (not name.isdigit() and len(matching) > 1):
            break
        if any(gpu in found for gpu in matching):
            return ()
        found += matching
    return tuple(found)


def _is_named(gpu: Gpu, name: str) -> bool:
    """Whether a number, a UUID, or the beginning of a UUID means this GPU."""
    if name.isdigit():
        return gpu.number == int(name)
    return name.startswith(("GPU-", "MIG-")) and gpu.uuid.lower().startswith(name.lower())


def phantom_machine(face: str) -> Machine:
    """The GPUs of a phantom's face; they have the UUIDs that its driver and its NVML give."""
    from pytest_cudafork.observe.torch.devices import properties_of, uuid_of
    from pytest_cudafork.settings.devices import parse_face

    capability, devices = parse_face(face)
    if capability is None:
        return Machine((), "the phantom driver shows no device")
    name = properties_of(capability).name
    return Machine(tuple(Gpu(index, uuid_of(index), name) for index in range(devices)))


def real_machine() -> Machine:
    """The GPUs that NVML tells of; without NVML those of the kernel's driver."""
    from pytest_cudafork.gpus.nvml import NvmlError, open_nvml

    try:
        with open_nvml() as nvml:
            return Machine(tuple(Gpu(*device) for device in nvml.devices()), "NVML finds no GPU")
    except NvmlError as error:
        return Machine(kernel_gpus(), f"{error}; and {_PROC} shows none")


def kernel_gpus(folder: str = _PROC) -> tuple[Gpu, ...]:
    """The GPUs that the kernel's driver shows in /proc, in the order of the bus."""
    try:
        addresses = sorted(os.listdir(folder))
    except OSError:
        return ()
    found = []
    for index, address in enumerate(addresses):
        facts: dict[str, str] = {}
        try:
            with open(os.path.join(folder, address, "information"), encoding="utf-8") as file:
                for line in file:
                    key, _, value = line.partition(":")
                    facts[key.strip()] = value.strip()
        except OSError:
            continue
        uuid = facts.get("GPU UUID", "")
        # question marks for a GPU that nobody has used since the driver was loaded
        known = uuid.startswith("GPU-") and "?" not in uuid
        found.append(Gpu(index, uuid if known else f"PCI-{address}", facts.get("Model", "")))
    return tuple(found)


def _gpus(n: int) -> str:
    return _count(n, "GPU")


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
