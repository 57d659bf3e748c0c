"""Which FlashAttention is installed, and whether it fits this torch, this Python and these GPUs.

There are several packages with much the same name. They share no files, need other GPUs, and a
wheel of one is built for one Python and one torch.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, NamedTuple

from pytest_cudafork.doctor.finding import Finding, ok, problem, warning
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.doctor.packages import Installed, find
from pytest_cudafork.doctor.torch_build import Torch, examine_import

Capability = tuple[int, int]
_BUILT_FOR = re.compile(r"torch(\d+\.\d+)")


class Family(NamedTuple):
    """One of the packages that are called FlashAttention.

    Attributes:
        name: What its authors call it.
        module: What is imported.
        distributions: The names under which it is installed.
        extension: What the file of its machine code begins with, beside the module or in it; "" if
            it compiles its kernels when they are used.
        runs_on: Whether there are kernels for a compute capability.
        gpus: Those GPUs in words.

    """

    name: str
    module: str
    distributions: tuple[str, ...]
    extension: str
    runs_on: Callable[[Capability], bool]
    gpus: str


def _ampere(capability: Capability) -> bool:
    return capability >= (8, 0)


def _hopper(capability: Capability) -> bool:
    return capability[0] == 9


def _hopper_or_blackwell(capability: Capability) -> bool:
    return capability[0] >= 9


_HOPPER = "Hopper (9.0)"
FAMILIES = (
    Family(
        "FlashAttention-2",
        "flash_attn",
        ("flash-attn",),
        "flash_attn_2_cuda",
        _ampere,
        "Ampere (8.0) and later",
    ),
    Family(
        "FlashAttention-3",
        "flash_attn_interface",
        ("flash-attn-3", "flash_attn_3"),
        "flash_attn_3/_C",
        _hopper,
        _HOPPER,
    ),
    Family("FlashAttention-3", "fa3_fwd_interface", ("fa3-fwd",), "fa3_fwd/_C", _hopper, _HOPPER),
    Family(
        "FlashAttention-4",
        "flash_attn.cute",
        ("flash-attn-4", "flash-attn-cute"),
        "",
        _hopper_or_blackwell,
        "Hopper (9.0), and Blackwell",
    ),
    Family(
        "vLLM's FlashAttention",
        "vllm.vllm_flash_attn",
        ("vllm",),
        "vllm/vllm_flash_attn/_vllm_fa2_C",
        _ampere,
        "Ampere (8.0) and later; its version 3 Hopper",
    ),
)


def examine_flash_attention(
    torch: Torch, machine: Machine, *, imports: bool
) -> tuple[list[Finding], dict[str, Any]]:
    """Judge each FlashAttention that is here.

    Args:
        torch: The torch that is installed.
        machine: The GPUs.
        imports: Whether each may be imported, in a child.

    """
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for family in FAMILIES:
        found = find(family.module, *family.distributions)
        if found is None or not _is_there(family, found):
            continue
        told = [*_of_files(family, found, torch), *_of_gpus(family, machine)]
        imported: dict[str, Any] = {}
        if imports and not any("another Python" in each.text for each in told):
            more, imported = examine_import(family.module, family.name)
            told += more
        facts[family.module] = {**found._asdict(), "family": family.name, "import": imported}
        if not told:
            text = f"{_words(family, found)}, for {family.gpus}"
            told = [ok(family.name, f"{text}; it can be imported" if imported else text)]
        findings += told
    if not facts:
        text = "none is installed" + ("" if torch.folder else ", nor is torch")
        findings.append(ok("FlashAttention", text, "attention takes the kernels of torch itself"))
    return findings, facts


def _is_there(family: Family, found: Installed) -> bool:
    """Whether it is this family's: FlashAttention-4 alone is a folder ``flash_attn`` as well."""
    if family.module != "flash_attn":
        return True
    return bool(found.distribution) or os.path.isfile(os.path.join(found.folder, "__init__.py"))


def _words(family: Family, found: Installed) -> str:
    name = f"{found.distribution} {found.version}" if found.distribution else "without metadata"
    return f"{name} (`import {family.module}`) in {found.folder}"


def _of_files(family: Family, found: Installed, torch: Torch) -> list[Finding]:
    """Judge by the names of files, and by what a wheel's version says of its build."""
    findings = []
    built = [os.path.basename(path) for path in _extensions(family, found)]
    prefix = os.path.basename(family.extension)
    if built and not any(name.removeprefix(prefix) in EXTENSION_SUFFIXES for name in built):
        findings.append(
            problem(
                family.name,
                f"{_words(family, found)} is built for another Python: {', '.join(built)}",
                "its import fails with ModuleNotFoundError although it is installed",
                "install the wheel for this Python, or build it here: "
                f"pip install --no-build-isolation --force-reinstall {family.distributions[0]}",
            )
        )
    wheel = _BUILT_FOR.search(found.version.partition("+")[2])
    if wheel and torch.version and not torch.version.startswith(f"{wheel[1]}."):
        findings.append(
            warning(
                family.name,
                f"{_words(family, found)} is built for torch {wheel[1]}; this is {torch.version}",
                "its import may fail with 'undefined symbol', or its calls with wrong arguments",
                f"install the wheel for torch {'.'.join(torch.version.split('.')[:2])}",
            )
        )
    return findings


def _extensions(family: Family, found: Installed) -> list[str]:
    """Return the files of machine code: below the folder, or below the one that it lies in."""
    if not family.extension:
        return []
    depth = family.module.count(".") + 1
    roots = [found.folder]
    for _ in range(depth):
        roots.append(os.path.dirname(roots[-1]))
    pattern = f"{glob.escape(family.extension)}*.so"
    return sorted({one for root in roots for one in glob.glob(os.path.join(root, pattern))})


def _of_gpus(family: Family, machine: Machine) -> list[Finding]:
    known = [(gpu, capability) for gpu, capability in machine.visible() if capability]
    unfit = [(gpu, each) for gpu, each in known if each and not family.runs_on(each)]
    if not unfit:
        return []
    gpus = ", ".join(f"{gpu.number} ({gpu.name}, {each[0]}.{each[1]})" for gpu, each in unfit)
    text = f"it has kernels for {family.gpus}, and none for GPU {gpus}"
    consequence = "its calls fail there, or the engine falls back to another backend"
    fix = "choose another attention backend for these GPUs"
    make = problem if len(unfit) == len(known) else warning
    return [make(family.name, text, consequence, fix)]
