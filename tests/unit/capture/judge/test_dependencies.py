"""What a write depends on, and whether it has changed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.judge.dependencies import (  # noqa: E402
    HistoryError,
    dependencies,
    is_settled,
)
from tests.support.captures import Looking, looking  # noqa: E402


def write_of(look: Looking, tensor: Any) -> Any:
    memory = look.history.memories.get(tensor)
    assert memory is not None
    return memory.writes[-1]


def test_all_living_inputs_are_found_and_changes_seen() -> None:
    with looking() as look:
        lengths, scale = torch.tensor([1, 2]), torch.tensor([3, 3])
        plan = lengths.cumsum(0) * scale
        found, gone = dependencies(write_of(look, plan))
        assert gone == ""
        memories = {one.memory for one in found}
        assert memories == {look.history.memories.get(lengths), look.history.memories.get(scale)}
        assert not any(one.has_changed for one in found)
        scale.add_(1)
        found, _ = dependencies(write_of(look, plan))
        changed = [one.memory for one in found if one.has_changed]
        assert changed == [look.history.memories.get(scale)]


def test_an_input_that_is_gone_for_good_is_named() -> None:
    with looking() as look:
        drawn = torch.randint(0, 5, (2000,))
        plan = drawn + 1
        del drawn
        _, gone = dependencies(write_of(look, plan))
    assert gone.startswith("an input is gone (")
    assert "test_dependencies.py:" in gone


def test_what_was_made_of_what_is_gone_is_settled_while_the_rest_is_as_it_was() -> None:
    with looking() as look:
        shift, lengths = torch.tensor([1, 1]), torch.zeros(2, dtype=torch.int64)
        lengths.copy_(torch.randint(0, 5, (2,)) + shift)
        plan, memory = lengths.cumsum(0), look.history.memories.get(lengths)
        assert memory is not None
        assert is_settled(memory, write_of(look, lengths))
        found, gone = dependencies(write_of(look, plan))
        assert gone == ""
        assert [one.memory for one in found] == [look.history.memories.get(lengths)]
        shift.add_(1)
        assert not is_settled(memory, write_of(look, lengths))
        assert dependencies(write_of(look, plan))[1] != ""


def test_what_was_read_in_two_states_is_history() -> None:
    with looking() as look:
        state = torch.tensor([1, 2])
        before = state + 1
        state.copy_(torch.tensor([5, 6]))
        both = before * state
        del before
        with pytest.raises(HistoryError):
            dependencies(write_of(look, both))


def test_what_is_written_in_place_depends_on_what_was_there() -> None:
    with looking() as look:
        lengths, plan = torch.tensor([1, 2]), torch.tensor([0, 0])
        plan.add_(lengths)
        plan.mul_(2)
        found, gone = dependencies(write_of(look, plan))
        assert gone == ""
        assert {one.memory for one in found} == {look.history.memories.get(lengths)}
