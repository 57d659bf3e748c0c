"""The training loop: how it ends, and with which weights."""

from __future__ import annotations

import math
import os
import signal
import types
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sample_engine.errors import EngineError
from tools.training import loop


class Runs:
    """What a loop calls, and what it called."""

    def __init__(self, loss: Callable[[int], float], checks: Callable[[int], float]) -> None:
        self.factors: list[float] = []
        self.kept: list[int] = []
        self._loss, self._checks, self._checked = loss, checks, 0

    def update(self, factor: float) -> Tensor:
        self.factors.append(factor)
        return torch.tensor(self._loss(len(self.factors)))

    def check(self) -> float:
        self._checked += 1
        return self._checks(self._checked)

    def keep(self) -> None:
        self.kept.append(len(self.factors))

    def run(self, budget: loop.Budget) -> loop.Outcome:
        return loop.run(
            update=self.update,
            check=self.check,
            keep=self.keep,
            budget=budget,
            tokens_per_step=1,
        )


def test_the_loop_takes_its_steps_and_keeps_what_is_best() -> None:
    runs = Runs(lambda step: 1.0, lambda number: abs(number - 7) + 0.5)

    outcome = runs.run(loop.Budget(seconds=1, steps=200))

    assert (outcome.steps, len(runs.factors), outcome.interrupted) == (200, 200, False)
    assert runs.kept == [20, 40, 60, 80, 100, 120, 140]
    assert outcome.best == 0.5


def test_the_loop_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(lambda step: 1.0, lambda number: 1.0)
    # A step takes a hundredth of a second, on a machine that is neither busy nor fast.
    clock = types.SimpleNamespace(monotonic=lambda: 100.0 + len(runs.factors) / 100)
    monkeypatch.setattr(loop, "time", clock)

    outcome = runs.run(loop.Budget(seconds=2.0, started=100.0))

    assert outcome.steps == len(runs.factors) == 200
    assert outcome.seconds == pytest.approx(2.0)
    assert runs.kept
    assert runs.factors[-1] < 0.1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_with_the_weights_of_that_moment(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def loss(step: int) -> float:
        if step == 13:
            os.kill(os.getpid(), number)
        return 1.0

    runs = Runs(loss, lambda number: 1.0)
    outcome = runs.run(loop.Budget(seconds=60, steps=10**9))

    assert outcome.interrupted
    assert outcome.steps == 13
    assert runs.kept == [13]
    assert signal.getsignal(number) is before


def test_a_loss_that_is_no_number_ends_the_loop_with_the_best_so_far() -> None:
    runs = Runs(lambda step: math.nan if step >= 50 else 1.0, lambda number: 1.0 / number)

    outcome = runs.run(loop.Budget(seconds=60, steps=200))

    assert outcome.steps == 50
    assert runs.kept == [20, 40]


def test_a_loop_that_never_had_a_number_is_an_error() -> None:
    runs = Runs(lambda step: math.nan, lambda number: math.nan)

    with pytest.raises(EngineError, match="stopped at step 10 with nothing worth keeping"):
        runs.run(loop.Budget(seconds=60, steps=200))


@given(spent=st.floats(0, 2), later=st.floats(0, 1), step=st.integers(0, 10**6))
def test_the_schedule_warms_up_and_ends_at_zero(spent: float, later: float, step: int) -> None:
    factor = loop.schedule(spent, step)

    assert 0 <= factor <= 1
    assert loop.schedule(spent + later, step) <= factor
    assert loop.schedule(spent, step + 1) >= factor
    assert loop.schedule(1.0, step) == 0
    assert loop.schedule(0.3, 1000) == 1


def test_a_compiler_that_fails_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    def loss_of(windows: Tensor) -> Tensor:
        return windows.sum()

    monkeypatch.setattr(torch, "compile", fails)

    assert loop.compiled(loss_of, torch.ones(1), wanted=True) is loss_of
    assert "no compiler here" in caplog.text
    assert loop.compiled(loss_of, torch.ones(1), wanted=False) is loss_of
