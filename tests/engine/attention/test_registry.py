"""A backend is chosen by name, imported late, and refused with reasons a user can act on."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from sample_engine.attention import registry
from sample_engine.attention.flash_libraries import find_library
from sample_engine.attention.registry import backend_class, choose
from sample_engine.errors import BackendUnavailableError
from tests.engine.support.attention import BACKENDS, Shape
from tests.engine.support.programs import run_python

ON_CPU = Shape().spec
ON_GPU = dataclasses.replace(ON_CPU, device=torch.device("cuda", 0), dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("name", ["reference", "lazy_plan", "sdpa"])
def test_a_backend_is_made_by_its_name(name: str) -> None:
    backend = choose(name, ON_CPU)
    assert type(backend) is backend_class(name)
    assert backend.name == name
    assert backend.description == name
    assert backend.spec == ON_CPU


def test_auto_on_a_cpu_is_the_reference() -> None:
    assert choose("auto", ON_CPU).name == "reference"


def test_every_name_has_a_backend_that_bears_it() -> None:
    assert [backend_class(name).name for name in BACKENDS] == BACKENDS


def test_an_unknown_name_is_refused_with_what_there_is_and_why_the_rest_is_not() -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        choose("flashinfer", ON_CPU)
    text = str(caught.value)
    assert "attention_backend='flashinfer' is not known" in text
    assert "There are here: lazy_plan, sdpa, reference." in text
    assert "flash (it needs a GPU, the model is on cpu)" in text
    assert "triton (it needs a GPU, the model is on cpu" in text
    assert "'auto'" in text


def test_a_backend_that_cannot_run_is_refused_with_its_reason_first() -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        choose("triton", ON_CPU)
    text = str(caught.value)
    assert text.startswith("attention_backend='triton' cannot run here: it needs a GPU")
    assert "There are here: lazy_plan, sdpa, reference." in text


def test_a_backend_whose_import_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sample_engine.attention.triton_backend", None)
    with pytest.raises(BackendUnavailableError, match="importing it failed: ModuleNotFoundError"):
        choose("triton", ON_CPU)


def test_triton_in_the_interpreter_takes_float32_but_not_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend_class("triton").why_not(ON_CPU) is None
    reason = backend_class("triton").why_not(dataclasses.replace(ON_CPU, dtype=torch.bfloat16))
    assert reason is not None
    assert "bfloat16" in reason


@pytest.mark.parametrize(
    ("capability", "wanted"), [((8, 0), None), ((9, 0), None), ((7, 5), "it needs 8.0")]
)
def test_triton_asks_what_the_gpu_can_do(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], wanted: str | None
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("sample_engine.device.platform.device_capability", lambda index: capability)
    reason = backend_class("triton").why_not(ON_GPU)
    assert (reason is None) if wanted is None else (reason is not None and wanted in reason)


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256, 264])
def test_triton_takes_heads_of_up_to_256(monkeypatch: pytest.MonkeyPatch, head_dim: int) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    reason = backend_class("triton").why_not(dataclasses.replace(ON_CPU, head_dim=head_dim))
    refused = "head_dim=264: the kernels go up to 256"
    assert reason == (refused if head_dim == 264 else None)


def _installed(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder of files that raise if they are imported the only one that is searched."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", [str(folder)])


REFUSE = "raise RuntimeError('a question must not import this')\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"flash_attn/cute/interface.py": REFUSE}, "flash_attn.cute"),
        ({"fa3_fwd_interface.py": REFUSE}, "fa3_fwd_interface"),
        (
            {"flash_attn/__init__.py": REFUSE, "flash_attn/flash_attn_interface.py": REFUSE},
            "flash_attn",
        ),
        (
            {
                "flash_attn/__init__.py": REFUSE,
                "flash_attn/flash_attn_interface.py": REFUSE,
                "flash_attn/cute/interface.py": REFUSE,
                "fa3_fwd_interface.py": REFUSE,
            },
            "flash_attn.cute",
        ),
    ],
    ids=["version 4", "version 3", "version 2", "all of them"],
)
def test_flash_finds_the_library_that_is_installed_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], found: str
) -> None:
    _installed(tmp_path, files, monkeypatch)
    library, why_none = find_library(ON_GPU, (9, 0))
    assert library is not None, why_none
    assert library.module == found
    assert found.partition(".")[0] not in sys.modules or found == "flash_attn.cute"


def test_flash_says_of_each_library_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(tmp_path, {"fa3_fwd_interface.py": REFUSE}, monkeypatch)
    half = dataclasses.replace(ON_GPU, dtype=torch.float16)
    library, why_none = find_library(half, (9, 0))
    assert library is None
    assert "fa3_fwd_interface computes in bfloat16, not in float16" in why_none
    assert "flash_attn.cute is not installed (pip install flash-attn-4)" in why_none
    assert "not made for compute capability 8.x" in find_library(ON_GPU, (8, 0))[1]


@pytest.mark.parametrize(
    ("missing", "taken"),
    [((), "triton"), (("triton",), "flash"), (("triton", "flash"), "reference")],
)
def test_auto_on_a_gpu_takes_the_first_that_can_run(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], taken: str
) -> None:
    made: list[str] = []

    def backend(name: str) -> type:
        methods = {
            "__init__": lambda self, spec: made.append(name),
            "why_not": classmethod(lambda cls, spec: "not today" if name in missing else None),
        }
        return type("Fake", (backend_class("reference"),), methods)

    fakes = {name: backend(name) for name in BACKENDS}
    monkeypatch.setattr(registry, "backend_class", fakes.get)
    choose("auto", ON_GPU)
    assert made == [taken]


def test_the_registry_imports_no_backend_before_it_is_asked() -> None:
    code = (
        "import sys, sample_engine.attention.registry as registry; list(registry._BACKENDS); "
        "late = ('triton', 'flash_attn', 'sample_engine.attention.reference',"
        " 'sample_engine.attention.flash', 'sample_engine.attention.triton_backend');"
        "print([name for name in late if name in sys.modules])"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
