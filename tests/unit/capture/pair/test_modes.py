"""The graph mode reaches a forward in its own words, however the forward is wrapped."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402


class GraphMode(enum.Enum):
    """What vLLM calls CUDAGraphMode."""

    NONE = "none"
    FULL = "full"


class Printed:
    """An argument that may not be printed within a capture: it holds a tensor."""

    def __init__(self) -> None:
        self.tensor = torch.ones(3)

    def __repr__(self) -> str:
        return f"Printed({self.tensor})"


class Runner:
    """Notes in which words it gets the mode."""

    def __init__(self) -> None:
        self.modes: list[Any] = []

    def forward(self, held: Printed, mode: GraphMode) -> Any:
        self.modes.append(type(mode))
        return held.tensor * 2


class Called(Runner):
    """An object that is the forward itself."""

    def __call__(self, mode: GraphMode) -> Any:
        return self.forward(Printed(), mode)

    def __repr__(self) -> str:
        return f"Called({Printed()})"


def _partial(runner: Called) -> Callable[..., Any]:
    return functools.partial(runner.forward, Printed())


def _of_a_partial(runner: Called) -> Callable[..., Any]:
    return functools.partial(functools.partial(runner.forward, Printed()))


@pytest.mark.parametrize("wrapped", [_partial, _of_a_partial, lambda runner: runner])
def test_a_wrapped_forward_gets_its_enumeration_and_is_not_printed(
    wrapped: Callable[[Called], Any],
) -> None:
    runner = Called()
    capture_pair(lambda desc, warmup: (wrapped(runner), {}), 1, backend="software")
    assert set(runner.modes) == {GraphMode}
