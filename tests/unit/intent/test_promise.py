"""The GPUs of a session, held against those it was promised."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.gpus.inventory import Gpu, Machine
from pytest_cudafork.intent import promise

TWO = Machine((Gpu(0, "GPU-a"), Gpu(1, "GPU-b")))


@pytest.mark.parametrize(
    ("machine", "visible", "have", "words"),
    [
        (TWO, None, 2, ""),
        (TWO, "1", 1, "2 GPUs expected, and this session has 1: the machine has 2, CUDA_VISIBLE"),
        (TWO, "", 0, "2 GPUs expected, and this session has 0: the machine has 2, CUDA_VISIBLE"),
        (Machine((), "no driver"), None, 0, "2 GPUs expected, and this session has 0: no driver"),
    ],
)
def test_what_is_short_is_told_with_why(
    machine: Machine, visible: str | None, have: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promise, "machine_of", lambda config: machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config: Any = None
    assert promise.gpus_of(config) == have
    assert promise.shortage(config, 2).startswith(words)
    assert bool(promise.shortage(config, 2)) == bool(words)
    assert promise.shortage(config, have) == ""
