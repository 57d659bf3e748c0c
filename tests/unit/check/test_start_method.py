"""Tests of what "auto" stands for."""

from __future__ import annotations

import pytest

from pytest_cudafork.check.start_method import Choice, ProcessState, automatic


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
