"""torch and Triton: for what they are built, and whether that fits the driver and the GPUs."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from pytest_cudafork.doctor.children import ask
from pytest_cudafork.doctor.finding import Finding, note, ok, problem, warning
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.doctor.packages import assigned_texts, find, required, satisfies
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.story.words import headline

TRITONS = ("triton", "pytorch-triton", "triton-nightly", "pytorch-triton-rocm", "triton-windows")
_IMPORT_SECONDS = 300.0
_CLANG = "clang/lib/Basic/Cuda.cpp of LLVM (026c6392), MinVersionForCudaArch"
_CMAKE = "Modules/Internal/CMakeCUDAArchitecturesAll.cmake of CMake (031593de)"
_ARCHIVE = "CUDA Features Archive 13.0, General CUDA"
SINCE = {
    (7, 0): ((9, 0), _CLANG),
    (7, 5): ((10, 0), _CLANG),
    (8, 0): ((11, 0), _CLANG),
    (8, 6): ((11, 1), _CLANG),
    (8, 7): ((11, 4), _CLANG),
    (8, 9): ((11, 8), _CLANG),
    (9, 0): ((11, 8), _CLANG),
    (10, 0): ((12, 8), _CMAKE),
    (10, 3): ((12, 9), _CMAKE),
    (11, 0): ((13, 0), f"{_ARCHIVE}: 'SM101 has been renumbered as SM110'"),
    (12, 0): ((12, 8), _CMAKE),
    (12, 1): ((12, 9), _CMAKE),
}
"""The first CUDA whose compiler makes code for a compute capability, and who says so.

Of one that is not here it is not known, and nothing is said.
"""
LEFT_OUT = {13: ((7, 5), f"{_ARCHIVE}: 'all NVIDIA architectures from Turing'")}
"""By major version of CUDA, the least capability that its compiler still makes code for."""


_UNKNOWN = (None, "")


class Torch(NamedTuple):
    """The torch that an import would find.

    Attributes:
        folder: Where it lies; "" if there is none.
        version: As its file version.py says.
        cuda: The CUDA for which it is built, such as "13.0"; "" for none.
        other: "ROCm" or "XPU" if it is built for that.

    """

    folder: str = ""
    version: str = ""
    cuda: str = ""
    other: str = ""

    @property
    def cuda_version(self) -> tuple[int, int] | None:
        """The CUDA for which it is built, as numbers."""
        parts = self.cuda.split(".")
        if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
            return None
        return int(parts[0]), int(parts[1])


def read_torch() -> tuple[Torch, list[Finding]]:
    """Read torch's build from its files."""
    found = find("torch", "torch")
    if found is None:
        seen = "touches of the driver are seen"
        if native_libs.why_not():
            seen = "the lines that touch the driver are not seen either"
        so = f"there is no torch whose functions are watched; {seen}"
        return Torch(), [note("torch", "is not installed", so)]
    try:
        texts = assigned_texts(os.path.join(found.folder, "version.py"))
    except (OSError, SyntaxError, ValueError) as error:
        return Torch(found.folder, found.version), [
            problem(
                "torch",
                f"what lies in {found.folder} has no version.py that can be read: {error}",
                "an import finds something that is not torch, or a torch that is broken",
                "remove or rename that folder, or install torch anew",
            )
        ]
    other = "ROCm" if texts.get("hip") else "XPU" if texts.get("xpu") else ""
    version = texts.get("__version__") or found.version
    return Torch(found.folder, version, texts.get("cuda", ""), other), []


def examine_torch(torch: Torch, machine: Machine) -> list[Finding]:
    """Judge by its files whether a torch fits the driver and the GPUs."""
    subject, where = "torch", f"{torch.version} in {torch.folder}"
    if torch.other:
        return [
            warning(
                subject,
                f"{where} is built for {torch.other}",
                f"what initializes {torch.other} is not seen; isolated tests run in fresh "
                "interpreters",
                "judge touches of CUDA with a CUDA or CPU build of torch",
            )
        ]
    if not torch.cuda:
        text = f"{where} is built without CUDA"
        if machine.gpus:
            return [
                warning(
                    subject,
                    f"{text}, and there are GPUs here",
                    "torch finds none of them, and its functions are watched as if it had CUDA",
                    "install a CUDA build, unless the tests are to run without GPUs",
                )
            ]
        return [
            ok(
                subject,
                text,
                "its functions are watched, and a touch is what a CUDA build would do",
            )
        ]
    return [ok(subject, f"{where} is built for CUDA {torch.cuda}"), *_fit(torch, machine)]


def _fit(torch: Torch, machine: Machine) -> list[Finding]:
    built, findings = torch.cuda_version, []
    if built is None:
        return []
    # Within a major version an older driver does: CUDA Features Archive 13.0, General CUDA.
    if machine.cuda and machine.cuda[0] < built[0]:
        findings.append(
            problem(
                "torch",
                f"it is built for CUDA {torch.cuda}; driver {machine.release} knows CUDA "
                f"{machine.cuda[0]}.{machine.cuda[1]} at most",
                "torch.cuda.is_available() is False: 'the NVIDIA driver on your system is too old'",
                f"install a newer driver, or a torch that is built for CUDA {machine.cuda[0]}.x",
            )
        )
    for gpu, capability in machine.visible():
        since, _ = SINCE.get(capability, _UNKNOWN) if capability else _UNKNOWN
        oldest, _ = LEFT_OUT.get(built[0], _UNKNOWN)
        old = capability is not None and oldest is not None and capability < oldest
        if old or (since is not None and built < since):
            findings.append(
                warning(
                    "torch",
                    f"CUDA {torch.cuda}, for which it is built, makes no code for GPU {gpu.number} "
                    f"({gpu.name}, compute capability {capability[0]}.{capability[1]})"
                    if capability
                    else "",
                    "kernels fail with 'no kernel image is available for execution on the device', "
                    "unless the build carries code that the driver can translate",
                    "install a torch that is built for "
                    + (f"CUDA {since[0]}.{since[1]} or later" if since and not old else "CUDA 12"),
                )
            )
    return findings


def examine_triton(torch: Torch) -> list[Finding]:
    """Judge the Triton that is installed beside torch."""
    found = find("triton", *TRITONS)
    wanted = required("torch", *TRITONS)
    if found is None:
        if not torch.cuda:
            return [ok("Triton", "is not installed")]
        return [
            warning(
                "Triton",
                "is not installed, and torch is a CUDA build",
                "torch.compile makes no code for GPUs, and kernels in Triton fail to import",
                f"pip install '{wanted[0] if wanted else 'triton'}'",
            )
        ]
    text = f"{found.distribution or 'triton'} {found.version or '(no version)'} in {found.folder}"
    wrong = [one for one in wanted if found.version and not satisfies(one, found.version)]
    if wrong:
        return [
            warning(
                "Triton",
                f"{text}; torch {torch.version} requires {wrong[0]}",
                "torch.compile may fail, or make wrong code, with another Triton than its own",
                f"pip install '{wrong[0]}'",
            )
        ]
    return [ok("Triton", text + (f", as torch requires ({wanted[0]})" if wanted else ""))]


def examine_import(module: str, subject: str) -> tuple[list[Finding], dict[str, Any]]:
    """Import a module in a child, under the watch; say what speaks against it."""
    answer = ask("import_module.py", module, timeout=_IMPORT_SECONDS, told=sys.path)
    touches = answer.result.touches if answer.result is not None else ()
    places = list(dict.fromkeys(headline(touch) for touch in touches))
    findings = [
        warning(
            subject,
            f"`import {module}` initializes CUDA at {at}",
            "a program that imports it and forks has children that can never use CUDA",
            "import it in the process that uses the GPU, after the last fork",
        )
        for at in places
    ]
    error = answer.why if answer.report is None else str(answer.report["error"])
    if answer.result is None:
        findings.append(
            warning(
                subject,
                f"`import {module}` could not be tried: {error}",
                "whether it works, and whether it initializes CUDA, is not known",
                "let TMPDIR name a folder with room, where files can be written",
            )
        )
    elif error:
        findings.append(
            problem(
                subject,
                f"`import {module}` fails: {error}",
                "what needs it fails likewise, or falls back to something slower without a word",
                "install a build for this Python, this torch and this platform",
            )
        )
    return findings, {"error": error, "touches": places}
