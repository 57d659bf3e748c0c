"""The GPUs that a session's tests may use; which of them are free, the locks tell.

NVML is asked, never the CUDA runtime, so nothing is initialized in the pytest process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_cudafork.counted import count_of
from pytest_cudafork.settings import AUTO, environment
from pytest_cudafork.settings.gpu_requests import GpuChoice, number_in_mask
from pytest_cudafork.settings.sizes import spell_size

PCI_ORDER = "PCI_BUS_ID"
PHANTOM_RESERVED = 512 << 20
"""What the phantom's driver keeps for itself, as its NVML says."""
_PROC = "/proc/driver/nvidia/gpus"


class Gpu(NamedTuple):
    """One device that a test can have.

    ``number`` is the one nvidia-smi shows; a MIG instance has that of its GPU. ``uuid`` names
    it in every process of the host. ``memory`` is what processes can have of it, in bytes; 0 if
    that is not known.
    """

    number: int
    uuid: str
    name: str = ""
    mig: bool = False
    memory: int = 0

    @property
    def visible_as(self) -> str:
        """What stands for it in CUDA_VISIBLE_DEVICES, if CUDA counts in the order of the bus."""
        return self.uuid if self.mig else str(self.number)


class Machine(NamedTuple):
    """All GPUs of the machine, and where there are none, why.

    ``unknown`` says why nobody can tell whether there are any, where that is so.
    """

    gpus: tuple[Gpu, ...]
    why_none: str = ""
    unknown: str = ""


class Inventory(NamedTuple):
    """The GPUs that this session may use, in the order in which they are given away.

    ``visible`` are all that the session was given, those that the option leaves out among them.
    """

    gpus: tuple[Gpu, ...]
    visible: tuple[Gpu, ...]
    machine: Machine
    choice: GpuChoice = GpuChoice()
    visible_text: str | None = None

    def candidates(self, n: int, memory: int | None = None) -> tuple[Gpu, ...]:
        """The GPUs that can be among `n` for one process; of MIG instances CUDA shows it one.

        With ``memory`` they have so many bytes, as far as that is known.
        """
        found = self.gpus if n == 1 else tuple(gpu for gpu in self.gpus if not gpu.mig)
        return tuple(gpu for gpu in found if not gpu.memory or gpu.memory >= (memory or 0))

    def excess(self, n: int, memory: int | None) -> str:
        """Say why no `n` GPUs here can ever have so much memory, "" if they can."""
        candidates = self.candidates(n)
        if memory is None or len(self.candidates(n, memory)) >= n:
            return ""
        sizes = sorted((gpu.memory for gpu in candidates), reverse=True)
        return (
            f"needs {count_of(n, 'GPU')} with {spell_size(memory)} each; this session has "
            f"{' and '.join(spell_size(size) for size in sizes[:n])} at most, beside what the "
            "driver keeps for itself: ask for less memory, or run it on larger GPUs"
        )

    def shortage(self, n: int) -> str:
        """Say why a test can never have `n` GPUs here, "" if it can."""
        have = len(self.candidates(n))
        if have >= n:
            return ""
        needs = f"needs {count_of(n, 'GPU')}"
        if not self.machine.gpus:
            return f"{needs}; this machine has none ({self.machine.why_none})"
        text = f"{needs}; this session has {have}"
        if have < len(self.gpus):
            text += (
                f" beside {count_of(len(self.gpus) - have, 'MIG instance')}, of which CUDA shows a "
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
        if not matching or (number_in_mask(name) is None and len(matching) > 1):
            break
        if any(gpu in found for gpu in matching):
            return ()
        found += matching
    return tuple(found)


def _is_named(gpu: Gpu, name: str) -> bool:
    """Whether a number, a UUID, or the beginning of a UUID means this GPU."""
    number = number_in_mask(name)
    if number is not None:
        return gpu.number == number
    return name.startswith(("GPU-", "MIG-")) and gpu.uuid.lower().startswith(name.lower())


def phantom_machine(face: str) -> Machine:
    """The GPUs of a phantom's face; they have the UUIDs that its driver and its NVML give."""
    from pytest_cudafork.observe.torch.devices import properties_of, uuid_of
    from pytest_cudafork.settings.devices import parse_face

    capability, devices = parse_face(face)
    if capability is None:
        return Machine((), "the phantom driver shows no device")
    model = properties_of(capability)
    size = model.total_memory - PHANTOM_RESERVED
    return Machine(
        tuple(Gpu(index, uuid_of(index), model.name, memory=size) for index in range(devices))
    )


def real_machine() -> Machine:
    """The GPUs that NVML tells of; without NVML those of the kernel's driver."""
    from pytest_cudafork.gpus.nvml import NvmlError, open_nvml

    try:
        with open_nvml() as nvml:
            return Machine(tuple(nvml.devices()), "NVML finds no GPU")
    except NvmlError as error:
        found, why = kernel_gpus(), f"{error}; and {_PROC} shows none"
        return Machine(found, why, "" if found else why)


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
