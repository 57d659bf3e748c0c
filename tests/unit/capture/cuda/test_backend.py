"""The backend of real graphs where there is no GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.support.helpers import needs_torch

pytestmark = needs_torch


def test_without_cuda_it_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from pytest_cudafork.capture.cuda.backend import CudaBackend
    from pytest_cudafork.capture.interface.backend import CaptureFailedError

    monkeypatch.setattr(torch.version, "cuda", None)
    backend = CudaBackend()
    assert backend.why_not() == f"torch {torch.__version__} is built without CUDA"
    for attempt in (backend.capture, backend.record):
        with pytest.raises(CaptureFailedError, match="built without CUDA"):
            attempt(lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert "forked" in (backend.why_not() or "")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert "no NVIDIA driver" in (backend.why_not() or "")


def test_an_unknown_error_mode_is_refused() -> None:
    from pytest_cudafork.capture.cuda.backend import CudaBackend

    with pytest.raises(ValueError, match="'strict'; it may be global, thread_local, relaxed"):
        CudaBackend(error_mode="strict")
