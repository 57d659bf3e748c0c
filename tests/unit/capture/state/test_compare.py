"""When what eager code and a replay computed differs, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import (  # noqa: E402
    ReplayDiffersError,
    assert_replay_equals_eager,
)
from pytest_cudafork.capture.state.compare import Tolerance, difference  # noqa: E402


def check(fn: Any, inputs: Any = (), **options: Any) -> Any:
    return assert_replay_equals_eager(fn, inputs, backend="software", **options)


def findings(run: Callable[[], Any]) -> dict[str, str]:
    """Return what was said, by check and path."""
    with pytest.raises(ReplayDiffersError) as caught:
        run()
    assert caught.value.findings
    return {f"{one.check} {one.path}".strip(): one.what for one in caught.value.findings}


def test_the_tolerance_is_that_of_the_type_or_the_users() -> None:
    x = torch.ones(4)

    def eager(x: Any) -> Any:
        return x * (2 + 1e-5)

    check(lambda x: x * 2, [x], eager=eager)
    findings(lambda: check(lambda x: x * 2, [x], eager=eager, rtol=0, atol=0))
    findings(lambda: check(lambda x: x * 2, [x], eager=lambda x: x * 2.1))
    check(lambda x: x * 2, [x], eager=lambda x: x * 2.1, rtol=0.1)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("inf")]), torch.tensor([float("inf")]), True),
        (torch.tensor([True]), torch.tensor([False]), False),
        (torch.tensor([1], dtype=torch.int8), torch.tensor([1], dtype=torch.int8), True),
        (torch.ones(2), torch.ones(3), False),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), True),
        (torch.ones(0), torch.ones(0), True),
        (torch.tensor(1 + 2j), torch.tensor(1 + 3j), False),
    ],
)
def test_bits_are_compared(a: Any, b: Any, same: bool) -> None:
    assert (difference("x", a, b, Tolerance(0, 0)) is None) is same


def test_the_greatest_difference_is_told() -> None:
    a = torch.zeros(2, 3)
    b = a.clone()
    b[1, 2], b[0, 1] = 4.0, 0.5
    found = difference("x", a, b, Tolerance())
    assert found is not None
    assert "2 of 6 elements differ" in found.what
    assert "4 at [1, 2]: eager 0, replay 4" in found.what
