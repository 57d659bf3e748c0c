"""What a graph uses, in words and tensors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.uses import GraphUses  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def test_reads_writes_results_and_lines_of_a_capture() -> None:
    with looking() as look:
        x, out = torch.ones(4), torch.zeros(4)

        def work() -> Any:
            out.copy_(x * 2)
            return out + 1

        captured = look.capture(work)
        uses: GraphUses = captured.seen.uses
        captured.replay()
        assert [each.tolist() for each in uses.inputs()] == [x.tolist(), out.tolist()]
        assert sorted(each.tolist() for each in uses.outputs()) == [[2.0] * 4, [3.0] * 4]
        assert [name for name, _ in uses.lines] == ["aten::mul", "aten::copy_", "aten::add"]
        assert all(where.startswith(__file__) for _, where in uses.lines)
        assert uses.work == 3
        assert {2, 1} <= uses.numbers
        (result,) = uses.made
        assert uses.covers(result)
        assert not uses.covers(look.history.memories.of(x))  # type: ignore[arg-type]


def test_numbers_are_taken_from_lists_and_truth_values_are_none() -> None:
    uses = GraphUses(1)
    uses.took([1, [2.5, (3,)], True, "4", None])
    assert uses.numbers == {1, 2.5, 3}


def test_parts_are_kept_once_and_not_without_limit() -> None:
    with looking() as look:
        x = torch.zeros(64)
        captured = look.capture(lambda: [x[i : i + 1] + 1 for i in [0, 0, *range(40)]])
        (use,) = captured.seen.uses.reads.values()
    assert len(use.parts) == 16
    assert len(set(use.parts)) == 16
