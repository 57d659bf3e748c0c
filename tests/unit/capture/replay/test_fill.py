"""Memory that is handed out uninitialized holds what it is told to."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.replay.fill import filling  # noqa: E402


@pytest.mark.parametrize("value", [0, 1])
def test_it_is_filled_and_told_with_its_lines(value: int) -> None:
    with filling(value) as filled:
        made = [torch.empty(3), torch.ones(2).new_empty(2), torch.empty_like(torch.ones(2))]
        other = torch.full((2,), 7.0)
    assert [one.unique().tolist() for one in made] == [[value]] * 3
    assert other.tolist() == [7, 7]
    assert filled.count == 3
    assert len(filled.lines) == 1
    assert filled.lines[0].startswith(__file__)


def test_at_most_three_lines_are_kept_and_empty_or_small_types_are_left_alone() -> None:
    with filling(1) as filled:
        torch.empty(1)
        torch.empty(1)
        torch.empty(1)
        torch.empty(1)
        torch.empty(0)
        torch.empty(2, dtype=torch.uint8)
    assert (filled.count, len(filled.lines)) == (4, 3)


def test_operators_of_functions_run() -> None:
    def branch(x: Any) -> tuple[Any, Any]:
        return x + 1, torch.empty_like(x)

    with filling(1) as filled:
        result, made = torch.ops.higher_order.cond(True, branch, branch, (torch.ones(2),))
    assert result.tolist() == [2, 2]
    assert made.tolist() == [1, 1]
    assert filled.count == 1
