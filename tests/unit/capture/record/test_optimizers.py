"""Optimizers that take a step within a capture, and the numbers of their groups."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.record.optimizers import numbers_of, steps_told  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def optimizer(**options: Any) -> Any:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return torch.optim.AdamW([weight], **{"lr": 0.5, "foreach": False, **options})


def test_numbers_are_those_of_the_host() -> None:
    (numbers,) = numbers_of(optimizer(betas=(0.5, 0.75)))
    assert numbers["lr"] == 0.5
    assert numbers["betas"] == (0.5, 0.75)
    assert not {"params", "amsgrad", "foreach"} & numbers.keys()
    (numbers,) = numbers_of(optimizer(lr=torch.tensor(0.5)))
    assert "lr" not in numbers


def test_steps_are_told_until_the_end() -> None:
    told: list[Any] = []
    one = optimizer()
    end = steps_told(told.append)
    one.step()
    end()
    one.step()
    assert told == [one]


def test_a_step_outside_of_captures_is_not_noted() -> None:
    with looking() as look:
        one = optimizer()
        one.step()
        captured = look.capture(lambda: one.param_groups[0]["params"][0] * 2)
        one.step()
    assert captured.seen.uses.steps == []
