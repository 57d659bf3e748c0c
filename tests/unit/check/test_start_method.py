"""Tests of what "auto" stands for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import state
from pytest_cudafork.check.start_method import Choice, ProcessState, automatic, process_state
from pytest_cudafork.compat import torch_internals
from pytest_cudafork.process.forking import freeze_before_fork


@pytest.mark.parametrize(
    ("state", "choice"),
    [
        (ProcessState(), Choice("fork")),
        (
            ProcessState(threads=3),
            Choice("forkserver", "not fork: 3 threads in the pytest process"),
        ),
        (
            ProcessState("initialized", 3),
            Choice("forkserver", "not fork: CUDA is initialized in the pytest process"),
        ),
        (
            ProcessState("not observable"),
            Choice("forkserver", "not fork: CUDA is not observable in the pytest process"),
        ),
        (
            ProcessState(other_build="ROCm"),
            Choice("spawn", "not fork: torch is built for ROCm"),
        ),
        (
            ProcessState("initialized", 9, "XPU"),
            Choice("spawn", "not fork: torch is built for XPU"),
        ),
    ],
)
def test_the_cheapest_safe_method_is_chosen(state: ProcessState, choice: Choice) -> None:
    assert automatic(state) == choice
    assert state.safe_to_fork == (choice.name == "fork")


def test_the_state_of_this_process_is_that_of_the_watch_or_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def says(word: str) -> Any:
        return lambda: SimpleNamespace(verdict=SimpleNamespace(value=word))

    monkeypatch.setattr(freeze_before_fork, "count_threads", lambda: 3)
    monkeypatch.setattr(torch_internals, "without_fork", lambda: "")
    monkeypatch.setattr(state, "current_state", says("clean"))
    assert process_state(None) == ProcessState("clean", 3)
    watch: Any = SimpleNamespace(observer=SimpleNamespace(state=says("poisoned")))
    assert process_state(watch) == ProcessState("poisoned", 3)
