"""Owns what the tests of the engine share: one thread for torch, Triton's interpreter.

Triton decides when it is imported whether it interprets, and again when a kernel's module is. So
both are imported here, before any test module can do it, and the variable is taken back at once: it
would reach the sessions and engine cores that tests start. On a machine with a GPU the kernels are
left to be compiled (tests/gpu), unless TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_VARIABLE = "TRITON_INTERPRET"
_KERNELS = (
    "combine_splits",
    "decode_paged",
    "gather_kv",
    "plan_decode",
    "prefill_contiguous",
    "prefill_paged",
    "write_kv",
)
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETS = os.environ.get(_VARIABLE) == "1" or not Path("/dev/nvidiactl").exists()


def _import_under_the_interpreter() -> None:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        importlib.import_module("triton.language")
        for name in _KERNELS:
            importlib.import_module(f"sample_engine.attention.kernels.{name}")
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before


if _HAS_TRITON and _INTERPRETS:
    _import_under_the_interpreter()


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute small things on one thread, and fork from a process whose pool of threads is idle."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter, for the kernels and for the backend that asks for it."""
    if not _HAS_TRITON:
        pytest.skip("needs triton")
    if not _INTERPRETS:
        pytest.skip("there is a GPU: tests/gpu runs the kernels compiled (or TRITON_INTERPRET=1)")
    monkeypatch.setenv(_VARIABLE, "1")
