"""What the demo shows: the list of its sessions, and what is expected of each."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from pathlib import Path

from tests.specimens.catalog import CATALOG
from tests.specimens.specimen import Form, Specimen

HERE = Path(__file__).resolve().parent
BUGS = ("class_body", "init_reexport", "guard_asks_torch", "server_script", "kv_sharing")


class Expect(enum.Enum):
    """What a session should show."""

    NAMED = "named"  # the culprit, and nothing else where the bug is ours
    SILENT = "silent"  # a repaired form: CUDA is used and no child is harmed
    CLEAN = "clean"  # CUDA is not touched
    ANYTHING = "anything"  # it depends on the machine or on the release


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    title: str
    text: str


@dataclass(frozen=True)
class Library:
    """What must be installed for a session; ``release`` is the one that is known to touch."""

    module: str
    distribution: str
    release: str = ""


@dataclass(frozen=True)
class Case:
    """One session.

    Attributes:
        section: where it is shown.
        name: what it is called there.
        source: a folder to copy, a form of a specimen, or the text of a test file.
        level: ``--cuda-fork-check``.
        device: ``--cuda-fork-device``.
        expect: what it should show.
        culprit: a pattern of the ``path:line`` that must be named.
        note: what one has to know to read the outcome.
        needs: what must be installed.

    """

    section: Section
    name: str
    source: Path | Form | str
    level: str
    device: str
    expect: Expect
    culprit: str = ""
    note: str = ""
    needs: tuple[Library, ...] = ()


REBUILT = Section(
    "Bugs of real projects, rebuilt small (tests/specimens)",
    "The buggy form fails and names its line. The repaired form uses CUDA too, and passes: no "
    "child is harmed.",
)
INSTALLED = Section(
    "Installed libraries: what does importing them do?",
    "The phantom answers as a machine with one GPU (sm_90) would.",
)
NEWCOMER = Section(
    "A first test file (demo/three_lines)",
    "It asks for a GPU when it is imported, and a test of it forks.",
)
SECTIONS = (REBUILT, INSTALLED, NEWCOMER)

_TORCH = Library("torch", "torch")
_TRITON = Library("triton", "triton")
_CUTLASS = Library("cutlass", "nvidia-cutlass-dsl", "4.4.2")
_TVM_FFI = Library("tvm_ffi", "apache-tvm-ffi")
_GPU = "phantom:sm_90"


def all_cases() -> list[Case]:
    """Return every session, in the order of the page."""
    bugs = {specimen.name: specimen for specimen in CATALOG}
    rebuilt = [case for name in BUGS for case in _forms(bugs[name])]
    return [*rebuilt, *_libraries(), _newcomer()]


def _forms(specimen: Specimen) -> list[Case]:
    buggy = Case(
        REBUILT,
        f"{specimen.name}, buggy",
        specimen.form("buggy"),
        specimen.level,
        specimen.device,
        Expect.NAMED,
        culprit=f"^{re.escape(specimen.culprit_line)}$",
        note=f"stands for {', '.join(specimen.corpus)}",
        needs=tuple(Library(module, module) for module in specimen.needs),
    )
    fixed = replace(
        buggy,
        name=f"{specimen.name}, fixed",
        source=specimen.form("fixed"),
        expect=Expect.SILENT,
        culprit="",
        note="",
    )
    return [buggy, fixed]


def _libraries() -> list[Case]:
    return [
        _import(_TORCH, expect=Expect.CLEAN),
        _import(_TRITON, expect=Expect.CLEAN),
        _import(
            _TORCH,
            _TVM_FFI,
            expect=Expect.NAMED,
            culprit=r"^tvm_ffi/",
            note="FlashAttention-4 (flash_attn.cute) imports it; a fork after that cannot use CUDA",
        ),
        _import(_TORCH, _CUTLASS, expect=Expect.NAMED, culprit=r"(^|/)cutlass/"),
        Case(
            INSTALLED,
            "a module that asks triton for its driver",
            HERE / "driver_chosen",
            "touch",
            _GPU,
            Expect.NAMED,
            culprit=r"^kernels\.py:",
            needs=(_TORCH, _TRITON),
        ),
        _import(
            _TORCH,
            module="torch.utils.cpp_extension",
            note="depends on the machine: it asks for a GPU only where it finds a CUDA toolkit",
        ),
        _import(
            _TORCH,
            module="torch._inductor.compile_fx",
            note="depends on the release: torch 2.11 asks for a GPU here, torch 2.13 does not",
        ),
    ]


def _import(
    *needs: Library,
    module: str = "",
    expect: Expect = Expect.ANYTHING,
    culprit: str = "",
    note: str = "",
) -> Case:
    """Import a module, the last of ``needs`` if no other is named, in the body of a test."""
    module = module or needs[-1].module
    text = f"def test_import():\n    import {module}\n"
    return Case(
        INSTALLED, f"import {module}", text, "touch", _GPU, expect, culprit, note, tuple(needs)
    )


def _newcomer() -> Case:
    return Case(
        NEWCOMER,
        "pytest --cuda-fork-check test_three_lines.py",
        HERE / "three_lines",
        "fork",
        "auto",
        Expect.NAMED,
        culprit=r"^test_three_lines\.py:",
        needs=(_TORCH,),
    )
