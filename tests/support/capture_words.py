"""What tests of the words of failed comparisons share: a step with Adam, and the words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.errors import GraphCaptureError  # noqa: E402


def words_of_failure(fn: Callable[[Any], Any], kind: type[Exception] = GraphCaptureError) -> str:
    """Return what is said of a function that cannot be captured, or replays differently."""
    with pytest.raises(kind) as failure:
        assert_replay_equals_eager(fn, [torch.randn(4)], backend="software")
    return " ".join(str(failure.value).split())


def step_with_adam(warm: bool = True, **options: Any) -> Callable[[Any], Any]:
    """Return a training step; ``warm``: which was run once, outside of a capture."""
    weight = torch.nn.Parameter(torch.randn(4))
    optimizer = torch.optim.Adam([weight], **options)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = ((weight - x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if warm:
        step(torch.zeros(4))
    return step
