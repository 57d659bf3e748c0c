"""Computing recorded values again, and comparing them with memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.judge.again import (  # noqa: E402
    Again,
    difference,
    last_writers,
)
from pytest_cudafork.capture.judge.dependencies import (  # noqa: E402
    CannotTellError,
    HistoryError,
)
from pytest_cudafork.capture.record.memory import Memory  # noqa: E402
from pytest_cudafork.capture.record.recorder import silently  # noqa: E402
from tests.support.captures import Looking, looking  # noqa: E402


def of(look: Looking, tensor: Any) -> Memory:
    found = look.history.memories.get(tensor)
    assert found is not None
    return found


def again(look: Looking, tensor: Any, **how: Any) -> Any:
    memory = of(look, tensor)
    with silently():
        return Again(**how).result(memory.writes[-1]).tolist()


def test_a_chain_is_computed_on_what_its_inputs_hold_now() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2])
        ends = lengths.cumsum(0)
        starts = torch.stack([ends - lengths, ends])[0] + 0
        assert again(look, starts) == [0, 1]
        lengths.copy_(torch.tensor([5, 1]))
        assert again(look, starts) == [0, 5]
        assert starts.tolist() == [0, 1]


def test_inputs_that_are_gone_are_computed_too_and_small_ones_of_the_host_were_kept() -> None:
    with looking() as look:
        plan = torch.tensor([1, 2]).cumsum(0) * 2
        assert again(look, plan) == [2, 6]


def test_large_inputs_that_are_gone_cannot_be_had_again() -> None:
    with looking() as look:
        large = torch.randint(0, 9, (2000,))
        plan = large + 1
        del large
        with pytest.raises(CannotTellError, match="an input is gone"):
            again(look, plan)


def test_in_place_work_is_done_on_what_was_there() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2])
        plan = torch.zeros(2, dtype=torch.long)
        plan.add_(lengths)
        plan.mul_(3)
        lengths.fill_(4)
        assert again(look, plan) == [12, 12]
        out = torch.empty(2, dtype=torch.long)
        torch.add(lengths, 1, out=out)
        assert again(look, out) == [5, 5]


def test_inputs_may_be_taken_as_what_they_were() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2])
        scratch = torch.zeros(2, dtype=torch.long)
        scratch.copy_(lengths * 2)
        plan = scratch + 1
        scratch.copy_(lengths * 100)  # another line uses the buffer for something else
        assert again(look, plan) == [101, 201]
        assert again(look, plan, as_recorded=True) == [3, 5]


def test_what_raises_now_cannot_be_told() -> None:
    with looking() as look:
        index, table = torch.tensor([1]), torch.arange(3)
        picked = table[index] + 1
        index.fill_(9)
        with pytest.raises(CannotTellError, match="raised IndexError"):
            again(look, picked)


def test_a_difference_is_told_of_the_elements_that_are_read_and_that_the_write_wrote_last() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3, 4])
        plan = torch.zeros(4, dtype=torch.long)
        plan[:] = lengths * 2
        plan[2:] = lengths[2:] * 5
        lengths.add_(1)
        memory = of(look, plan)
        first, second = memory.writes[0], memory.writes[-1]
        whole, tail = memory.writes[-1].part, None
        del whole, tail
        from pytest_cudafork.capture.record.memory import part_of

        with silently():
            told = difference(memory, first, [part_of(plan)], Again())
            assert told == "element 0 is 2 and would be 4"
            assert difference(memory, first, [part_of(plan[2:])], Again()) == ""
            told = difference(memory, second, [part_of(plan)], Again())
            assert told == "element 2 is 15 and would be 20"


def test_nearly_the_same_is_the_same_for_floats() -> None:
    with looking("all") as look:
        lengths = torch.tensor([1, 2])
        scale = lengths / 3.0
        memory = of(look, scale)
        scale.numpy()[0] += 1e-8
        from pytest_cudafork.capture.record.memory import part_of

        assert difference(memory, memory.writes[0], [part_of(scale)], Again()) == ""
        scale.numpy()[0] += 1
        assert "would be 0.333333" in difference(
            memory, memory.writes[0], [part_of(scale)], Again()
        )


def test_what_depends_on_itself_is_history() -> None:
    with looking() as look:
        a, b = torch.tensor([1, 2]), torch.tensor([3, 4])
        for _ in range(2):
            a.copy_(b + 1)
            b.copy_(a + 1)
        with pytest.raises(HistoryError):
            again(look, b)


def test_elements_know_which_write_was_the_last_one() -> None:
    with looking() as look:
        rows = torch.zeros(4, dtype=torch.int64)
        rows[:3].copy_(torch.tensor([1, 2, 3]))
        rows[:1].copy_(torch.tensor([4]))
        memory = of(look, rows)
        second = memory.writes[1]
        with silently():
            marked = last_writers(memory, [second.part], lambda write: write is second)
            assert list(marked) == [0, 1, 1, 0]
            other = second.part._replace(dtype=torch.int8)
            assert last_writers(memory, [other], lambda write: True) is None
