"""Which GPUs and which driver are here, as NVML tells: nothing of this initializes CUDA."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_cudafork.doctor.finding import Finding, note, ok, problem, warning
from pytest_cudafork.gpus.inventory import Gpu, kernel_gpus, visible_gpus
from pytest_cudafork.gpus.nvml import NvmlError, open_nvml
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.real_driver import has_kernel_part, why_no_driver
from pytest_cudafork.without_torch import torch_is_missing

_SUBJECT = "driver"


class Machine(NamedTuple):
    """The GPUs of the machine.

    Attributes:
        present: Whether there is a driver: NVML answers, or programs could use one.
        release: The driver's release, such as "580.65.06"; "" where NVML does not tell.
        cuda: The newest CUDA that the driver knows, such as (13, 0).
        gpus: All GPUs, as (GPU, compute capability or None).
        trouble: What NVML said instead of an answer.
        missing: What of a driver is not here, where a part is; programs that use CUDA find none.

    """

    present: bool
    release: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[tuple[Gpu, tuple[int, int] | None], ...] = ()
    trouble: str = ""
    missing: str = ""

    def visible(self) -> list[tuple[Gpu, tuple[int, int] | None]]:
        """The GPUs that CUDA would show a process with this environment."""
        text = environment.optional(environment.VISIBLE_GPUS)
        if text is None:
            return list(self.gpus)
        shown = visible_gpus(text, [gpu for gpu, _ in self.gpus])
        return [(gpu, capability) for gpu, capability in self.gpus if gpu in shown]

    def to_plain(self) -> dict[str, Any]:
        """As texts, numbers, lists and dicts."""
        gpus = [{**gpu._asdict(), "capability": capability} for gpu, capability in self.gpus]
        return {**self._asdict(), "gpus": gpus}


def look(binding: Any = None) -> Machine:
    """Ask NVML; ``binding`` is what ``open_nvml`` takes."""
    missing = why_no_driver()
    part = missing if has_kernel_part() else ""
    try:
        with open_nvml(binding) as nvml:
            found = [(device, nvml.capability(device.number)) for device in nvml.devices()]
            release, cuda = nvml.driver()
            return Machine(True, release, cuda, tuple(found), missing=part)
    except NvmlError as error:
        kernel = tuple((gpu, None) for gpu in kernel_gpus())
        return Machine(not missing, gpus=kernel, trouble=str(error), missing=part)


def examine(machine: Machine) -> list[Finding]:
    """Judge the driver and the GPUs that can be seen."""
    if machine.missing:
        return [_in_part(machine.missing)]
    if not machine.present:
        return [
            note(
                _SUBJECT,
                f"there is no NVIDIA driver ({machine.trouble})",
                f"{_what_stands_in()}, no kernel runs, and tests marked for a GPU are skipped",
            )
        ]
    if machine.trouble:
        return [_without_nvml(machine.trouble)]
    cuda = f"CUDA {machine.cuda[0]}.{machine.cuda[1]}" if machine.cuda else "an unknown CUDA"
    findings = [ok(_SUBJECT, f"release {machine.release}, for {cuda} at most")]
    if not machine.gpus:
        return [
            *findings,
            warning(
                _SUBJECT,
                "NVML finds no GPU",
                "the real driver is used and answers that there is none; tests of GPUs are skipped",
                "look at `nvidia-smi -L`; in a container ask for GPUs (`--gpus all`)",
            ),
        ]
    for gpu, capability in machine.gpus:
        words = f"{gpu.number}: {gpu.name}{' (MIG instance)' if gpu.mig else ''}"
        known = f"sm_{capability[0]}{capability[1]}" if capability else "capability unknown"
        findings.append(ok("GPU", f"{words}, {known}, {gpu.uuid}"))
    return findings


def _what_stands_in() -> str:
    """Say what the check sees where no driver can be used."""
    if not native_libs.why_not():
        return "tests of CUDA run against the phantom driver: touches and forks are judged"
    missing = "the phantom driver, which would stand in, is not here"
    if torch_is_missing():
        return f"{missing}, nor is torch: no touch is seen, and no fork is judged"
    return f"{missing}: only touches by torch are seen, and forks after these judged"


def _in_part(missing: str) -> Finding:
    return warning(
        _SUBJECT,
        f"only a part of an NVIDIA driver is here: {missing}",
        f"programs that use CUDA find no GPU; {_what_stands_in()}",
        "in a container ask for GPUs (`--gpus all`), and let NVIDIA_DRIVER_CAPABILITIES hold "
        "'compute'; nothing is to be done where no GPU is meant to be seen",
    )


def _without_nvml(trouble: str) -> Finding:
    if "mismatch" in trouble.lower():
        return problem(
            _SUBJECT,
            f"a driver is here, and {trouble}",
            "no process can use CUDA: the library is of another release than the kernel's part",
            "reboot the machine or load the kernel module anew; in a container, start it anew",
        )
    return warning(
        _SUBJECT,
        f"a driver is here, and {trouble}",
        "without NVML torch.cuda.device_count() initializes CUDA: lines that touch nothing "
        "elsewhere do so here",
        "install the driver's libnvidia-ml.so.1; in a container let "
        "NVIDIA_DRIVER_CAPABILITIES hold 'utility'",
    )
