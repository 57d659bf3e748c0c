"""Which FlashAttention is installed, and whether it fits this torch, this Python and these GPUs.

There are several packages with much the same name. They share no files, need other GPUs, and a
wheel of one is built for one Python and one torch.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, NamedTuple

from pytest_cudafork.doctor.finding import Finding, Level, note, ok, problem, warning
from pytest_cudafork.doctor.gpus import Machine
from pytest_cudafork.doctor.packages import Installed, find
from pytest_cudafork.doctor.torch_build import Torch, examine_import
from pytest_cudafork.gpus.inventory import Gpu

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
        runs_on: Whether there are kernels for a compute capability; None: that is not known, as
            its documents do not say, or releases differ.
        gpus: Those GPUs in words.
        source: The document that says so.

    """

    name: str
    module: str
    distributions: tuple[str, ...]
    extension: str
    runs_on: Callable[[Capability], bool | None]
    gpus: str
    source: str


def _ampere(capability: Capability) -> bool | None:
    return None if capability[0] == 11 else capability >= (8, 0)


def _eight_and_later(capability: Capability) -> bool | None:
    return capability >= (8, 0)


def _hopper(capability: Capability) -> bool | None:
    return None if capability[0] == 8 else capability[0] == 9


def _hopper_or_blackwell(capability: Capability) -> bool | None:
    if capability[0] in (9, 10):
        return True
    return None if capability[0] in (8, 11, 12) else False


_HOPPER = "Hopper (9.0)"
_THREE = (
    "README of Dao-AILab/flash-attention: 'Requirements: H100 / H800 GPU'; its hopper/setup.py "
    "builds kernels for 8.0, too, unless FLASH_ATTENTION_DISABLE_SM80 is set"
)
FAMILIES = (
    Family(
        "FlashAttention-2",
        "flash_attn",
        ("flash-attn",),
        "flash_attn_2_cuda",
        _ampere,
        "Ampere (8.0) and later",
        "README of Dao-AILab/flash-attention: 'Ampere, Ada, or Hopper GPUs', Turing elsewhere; for "
        "Blackwell cuda_archs() in setup.py of 2.8.3: 80, 90, 100, 120 (110 in later ones)",
    ),
    Family(
        "FlashAttention-3",
        "flash_attn_interface",
        ("flash-attn-3", "flash_attn_3"),
        "flash_attn_3/_C",
        _hopper,
        _HOPPER,
        _THREE,
    ),
    Family(
        "FlashAttention-3",
        "fa3_fwd_interface",
        ("fa3-fwd",),
        "fa3_fwd/_C",
        _hopper,
        _HOPPER,
        f"page of fa3-fwd on PyPI: the forward kernels of FlashAttention-3; {_THREE}",
    ),
    Family(
        "FlashAttention-4",
        "flash_attn.cute",
        ("flash-attn-4", "flash-attn-cute"),
        "",
        _hopper_or_blackwell,
        "Hopper (9.0), and Blackwell (10.0)",
        "README of Dao-AILab/flash-attention: 'Hopper and Blackwell GPUs (e.g. H100, B200)'; "
        "flash_attn/cute/interface.py accepts 9 and 10 in all releases seen, 11, then 8 and 12 in "
        "later ones",
    ),
    Family(
        "vLLM's FlashAttention",
        "vllm.vllm_flash_attn",
        ("vllm",),
        "vllm/vllm_flash_attn/_vllm_fa2_C",
        _eight_and_later,
        "Ampere (8.0) and later; its version 3 Hopper",
        "vllm/vllm_flash_attn/flash_attn_interface.py: 'FA2 is only supported on devices with "
        "compute capability >= 8', version 3 on the family of 9.0",
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
        facts[family.module] = {
            **found._asdict(),
            "family": family.name,
            "source": family.source,
            "import": imported,
        }
        if all(each.level is Level.NOTE for each in told):
            text = f"{_words(family, found)}, for {family.gpus}"
            found_ok = ok(family.name, f"{text}; it can be imported" if imported else text)
            told = [found_ok, *told]
        findings += told
    if not facts:
        so = "attention takes the kernels of torch itself" if torch.folder else ""
        findings.append(ok("FlashAttention", "none is installed", so))
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
    fits = [(gpu, each, family.runs_on(each)) for gpu, each in machine.visible() if each]
    unfit = [(gpu, each) for gpu, each, answer in fits if answer is False]
    unknown = [(gpu, each) for gpu, each, answer in fits if answer is None]
    findings = []
    if unfit:
        text = f"it has kernels for {family.gpus}, and none for GPU {_gpus(unfit)}"
        consequence = "its calls fail there, or the engine falls back to another backend"
        fix = "choose another attention backend for these GPUs"
        make = problem if len(unfit) == len(fits) else warning
        findings.append(make(family.name, text, consequence, fix))
    if unknown:
        findings.append(
            note(
                family.name,
                f"it has kernels for {family.gpus}; whether it has any for GPU {_gpus(unknown)} is "
                "unknown: its releases differ",
                "its calls may fail there",
                "try one call on that GPU",
            )
        )
    return findings


def _gpus(gpus: Sequence[tuple[Gpu, Capability]]) -> str:
    return ", ".join(f"{gpu.number} ({gpu.name}, {each[0]}.{each[1]})" for gpu, each in gpus)
