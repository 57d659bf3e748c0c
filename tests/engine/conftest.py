"""What the tests of the engine share: one thread for torch, Triton's interpreter.

Where a library that the engine stands on is not installed, each file is skipped and says so.

Triton decides when it is imported whether it interprets, and again when a kernel's module is. So
both are imported here, before any test module can do it, and the variable is taken back at once: it
would reach the sessions and engine cores that tests start. On a machine with a GPU the kernels are
left to be compiled (test_backends_on_gpu.py), unless TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.triton_here import INTERPRETS, VARIABLE

_NEEDED = ("torch", "msgspec", "numpy", "safetensors", "tqdm")
_MISSING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
_KERNELS = (
    "attention.kernels.combine_splits",
    "attention.kernels.decode_paged",
    "attention.kernels.gather_kv",
    "attention.kernels.plan_decode",
    "attention.kernels.prefill_contiguous",
    "attention.kernels.prefill_paged",
    "attention.kernels.write_kv",
    "kv_transfer.kernels.move_blocks",
    "model.kernels.linear",
    "model.kernels.rms_norm",
    "model.kernels.rotate",
    "model.kernels.silu_and_mul",
    "parallel.kernels.sum_over_peers",
    "speculate.kernels.next_step",
    "speculate.kernels.ngram",
    "speculate.kernels.passes",
    "speculate.kernels.verdict",
)
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def _import_under_the_interpreter() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "1")
        importlib.import_module("triton.language")
        for name in _KERNELS:
            importlib.import_module(f"sample_engine.{name}")
        importlib.import_module("tests.engine.support.triton_interpreter").patch_once()


if _HAS_TRITON and INTERPRETS and not _MISSING:
    _import_under_the_interpreter()


class _SkippedFile(pytest.Module):
    """A file that cannot be imported here."""

    def collect(self) -> list[Any]:
        """Skip it, with the reason."""
        return pytest.skip(f"the engine needs {', '.join(_MISSING)}", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Do not import what needs a library that is missing."""
    return _SkippedFile.from_parent(parent, path=module_path) if _MISSING else None


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute small things on one thread, and fork from a process whose pool of threads is idle."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small random model with a draft head: the same for all tests, which only read it."""
    from tests.engine.support.engine import add_head, model_folder

    return add_head(model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter, for the kernels and for the backend that asks for it."""
    if not _HAS_TRITON:
        pytest.skip("needs triton")
    if not INTERPRETS:
        pytest.skip(
            "there is a GPU: test_backends_on_gpu.py compiles the kernels (or TRITON_INTERPRET=1)"
        )
    monkeypatch.setenv(VARIABLE, "1")
