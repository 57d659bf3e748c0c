"""The answer to "is CUDA initialized here?" outside a checked session, and the check of it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import state as states
from pytest_cudafork.check.state import current_state, require_clean
from pytest_cudafork.errors import CudaTouchError
from pytest_cudafork.observe.driver.probe import CudaState, Driver, DriverAnswer, Verdict
from pytest_cudafork.observe.story.stories import History


def state(verdict: Verdict, why: str = "the driver says so") -> CudaState:
    """Return a state with this verdict."""
    return CudaState(verdict, Driver.INITIALIZED, None, None, why)


def test_the_driver_is_asked_and_the_forks_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "ask_driver", lambda: DriverAnswer(Driver.INITIALIZED))
    assert current_state().initialized
    lineage: Any = SimpleNamespace(poisoned_by=17, forked_unwatched=False)
    monkeypatch.setattr(states, "process_lineage", lambda: lineage)
    assert current_state().poisoned
    assert "17" in current_state().why


def test_a_clean_process_passes() -> None:
    require_clean(state(Verdict.CLEAN), None, "before the test")


@pytest.mark.parametrize("verdict", [Verdict.INITIALIZED, Verdict.POISONED, Verdict.NOT_OBSERVABLE])
def test_anything_else_is_an_error_that_says_how_to_learn_more(verdict: Verdict) -> None:
    with pytest.raises(CudaTouchError) as raised:
        require_clean(state(verdict), None, "before the test")
    text = str(raised.value)
    assert text.startswith(f"CUDA is {verdict.value} in this process before the test: the driver")
    assert text.endswith("Run with --cuda-fork-check to see which line did it.")


def test_a_checked_session_names_the_line() -> None:
    record = {
        "k": "touch", "id": "1-1", "t": 1, "pid": os.getpid(), "entry": "cuInit",
        "stack": [["/src/engine.py", 3, "probe", 3]],
    }  # fmt: skip
    written: list[Any] = []  # by another thread, a moment after it has changed the state
    observer: Any = SimpleNamespace(
        settle=lambda: written.append(record), history=lambda: History(written)
    )
    with pytest.raises(CudaTouchError, match=r"engine\.py:3: in probe"):
        require_clean(state(Verdict.INITIALIZED), observer, "during the test")


def test_a_checked_session_that_saw_nothing_says_no_more() -> None:
    observer: Any = SimpleNamespace(settle=lambda: None, history=History)
    with pytest.raises(CudaTouchError) as raised:
        require_clean(state(Verdict.INITIALIZED, "torch says so"), observer, "during the test")
    assert str(raised.value).endswith("during the test: torch says so.")
