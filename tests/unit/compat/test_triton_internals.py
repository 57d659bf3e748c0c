"""Names of Triton that a capture uses."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pytest_cudafork.compat import triton_internals
from tests.unit.compat import require


def test_triton_still_has_the_name() -> None:
    module = pytest.importorskip("triton.runtime.autotuner")
    assert triton_internals.autotuner() is module.Autotuner
    needed_for = "refusing to tune kernels within a capture"
    require("triton", module.Autotuner, triton_internals.TUNE, needed_for)


def test_where_triton_is_not_imported_there_is_no_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "triton.runtime.autotuner"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert triton_internals.autotuner() is None
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(Autotuner=int))
    assert triton_internals.autotuner() is int
