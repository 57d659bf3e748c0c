"""Environment variables of others that change what a verdict is, or what CUDA does here.

Whoever reads a failure elsewhere has other values. The start methods' variables are judged with the
start method (``start_up.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from pytest_cudafork.doctor.finding import Finding, note, problem, warning
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.real_driver import LIBCUDA, is_for_linking

MPS_PREFIX = "CUDA_MPS_"
_YES = ("1", "true", "yes", "y", "on")
"""What Triton takes for yes, in any case (``getenv_bool`` of its knobs)."""
_ELSEWHERE = "set it in the lines of the job that needs it, where a reader sees it, or unset it"


def examine_variables(machine: Machine) -> list[Finding]:
    """Return what the variables of this environment change; nothing for those that are not set."""
    found = list(_of_mps())
    for name, judge in JUDGES.items():
        text = environment.optional(name)
        if text is not None:
            found += judge(text, machine)
    if machine.gpus and not environment.is_set(environment.GPU_ORDER):
        found += _order_of_unlike_gpus(machine)
    return found


def _order_of_unlike_gpus(machine: Machine) -> Iterator[Finding]:
    if len({gpu.name for gpu, _ in machine.gpus}) > 1:
        yield warning(
            environment.GPU_ORDER,
            "is not set, and the GPUs are of different models",
            "CUDA counts the fastest first, nvidia-smi and the leases in the order of the bus: a "
            "number means two GPUs",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )


def _nvml_check(text: str, machine: Machine) -> Iterator[Finding]:
    name = environment.NVML_CHECK
    if text == "1":
        yield warning(
            name,
            "is 1: torch.cuda.is_available() asks NVML, and initializes nothing",
            "a line that is clean here touches CUDA wherever the variable is not set",
            f"unset {name} where touches are judged",
        )
    else:
        yield note(name, f"is {text!r}; torch heeds '1' alone", "it changes nothing")


def _visible(text: str, machine: Machine) -> Iterator[Finding]:
    name = environment.VISIBLE_GPUS
    shown = [gpu for gpu, _ in machine.visible()]
    if not machine.gpus and machine.present and machine.trouble:
        yield note(
            name,
            f"is {text!r}; nobody tells which GPUs are here ({machine.trouble})",
            "whether CUDA shows any of them is not known",
        )
    elif not machine.gpus:
        yield note(name, f"is {text!r}, and there is no GPU here", "it changes nothing here")
    elif shown:
        numbers = ", ".join(str(gpu.number) for gpu in shown)
        yield note(
            name,
            f"is {text!r}: CUDA shows {len(shown)} of {len(machine.gpus)} GPUs (number {numbers})",
            "NVML and nvidia-smi count all of them; what a process sets after its first touch is "
            "not read any more",
        )
    elif text.strip() in ("", "-1"):
        yield note(
            name,
            f"is {text!r}: all GPUs are hidden",
            "tests of GPUs are skipped; cuInit still counts as a touch, and answers 'no device'",
            f"unset {name} to use the GPUs",
        )
    else:
        yield problem(
            name,
            f"is {text!r}, which names no GPU of this machine, or one twice",
            "CUDA shows none: torch.cuda.is_available() is False, and tests of GPUs are skipped",
            "name GPUs that `nvidia-smi -L` lists, by number or by UUID",
        )


def _injection(text: str, machine: Machine) -> Iterator[Finding]:
    name = environment.INJECTION
    if text == native_libs.INJECTION:
        return
    there = "" if os.path.isfile(text) else ", which does not exist"
    yield warning(
        name,
        f"is {text!r}{there}: a profiler's, as nsys and compute-sanitizer set it",
        "the driver loads that and not our witness: of touches by anything but torch no line is "
        "known on a real GPU",
        f"unset {name} where touches are judged",
    )


def _preload(text: str, machine: Machine) -> Iterator[Finding]:
    if text.strip():
        yield note(
            environment.PRELOAD,
            f"is {text!r}",
            "these libraries are in every process before Python is; they may start threads, or "
            "stand before functions that are watched",
            "judge once without it",
        )


def _library_path(text: str, machine: Machine) -> Iterator[Finding]:
    for folder in text.split(os.pathsep):
        if is_for_linking(folder) and os.path.exists(os.path.join(folder, LIBCUDA)):
            yield problem(
                environment.LIBRARY_PATH,
                f"holds {folder}, which has the {LIBCUDA} that programs are linked with",
                "that driver answers every call with CUDA_ERROR_STUB_LIBRARY: no GPU is found",
                "take the folder out: it is for linking alone",
            )


def _interpret(text: str, machine: Machine) -> Iterator[Finding]:
    if text.lower() in _YES:
        yield warning(
            environment.INTERPRET,
            f"is {text!r}: kernels in Triton run as Python code, one program after the other",
            "a race never shows, and results in bfloat16 differ from a GPU's",
            _ELSEWHERE,
        )


def _no_caching(text: str, machine: Machine) -> Iterator[Finding]:
    """Warn of any value: torch looks only whether it is set (``forceUncachedAllocator``)."""
    by = "" if text not in ("", "0") else ", by that as by any value"
    yield warning(
        environment.NO_CACHING,
        f"is {text!r}: torch asks the driver for each tensor's memory{by}",
        "graphs have no pool of their own, so that captures fail or replays read freed memory",
        f"unset it where graphs are captured; {_ELSEWHERE}",
    )


def _blocking(text: str, machine: Machine) -> Iterator[Finding]:
    if text not in ("", "0"):
        yield note(
            environment.BLOCKING,
            f"is {text!r}: each launch waits for its kernel",
            "races between streams do not show",
            _ELSEWHERE,
        )


def _of_mps() -> Iterator[Finding]:
    names = sorted(name for name in os.environ if name.startswith(MPS_PREFIX))
    if names:
        yield warning(
            f"{MPS_PREFIX}*",
            f"{', '.join(f'{name}={environment.value(name)!r}' for name in names)}: processes "
            "share GPUs through MPS",
            "a fatal error of one process ends CUDA in the others, whose tests fail for nothing of "
            "theirs; memory is seen as the server's",
            "run the tests without MPS, or one session to a GPU",
        )


def _watched(text: str, machine: Machine) -> Iterator[Finding]:
    if text:
        yield note(
            environment.WATCH,
            "is set: this shell was started by a watched session",
            "what is run from here is recorded in that session's ledger",
            "run the doctor outside of it for an answer about the machine",
        )


JUDGES: dict[str, Callable[[str, Machine], Iterator[Finding]]] = {
    environment.NVML_CHECK: _nvml_check,
    environment.VISIBLE_GPUS: _visible,
    environment.INJECTION: _injection,
    environment.PRELOAD: _preload,
    environment.LIBRARY_PATH: _library_path,
    environment.INTERPRET: _interpret,
    environment.NO_CACHING: _no_caching,
    environment.BLOCKING: _blocking,
    environment.WATCH: _watched,
}
"""The variables, and what is said of each that is set."""
