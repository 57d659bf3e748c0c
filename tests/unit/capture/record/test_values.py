"""The graph of values: what an operation follows from today."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.values import ancestors, unknown_operation  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def names_behind(memory: Any) -> set[str]:
    runs: list[Any] = [each.run for each in ancestors(memory.writes[0].operation)]
    return {run._schema.name for run in runs}


def test_ancestors_are_what_a_value_follows_from_with_the_newest_inputs() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2])
        ends = lengths.cumsum(0)
        starts = ends - lengths
        memory = look.history.memories.get(starts)
        assert memory is not None
        names = names_behind(memory)
        assert names == {"aten::sub", "aten::cumsum"}
        ends.copy_(torch.tensor([5, 6]))  # from now on it follows from numbers of the host
        names = names_behind(memory)
        assert "aten::cumsum" not in names


def test_an_unknown_operation_keeps_place_and_time() -> None:
    with looking() as look:
        made: Any = torch.tensor([1]) + 1
        memory = look.history.memories.get(made)
        assert memory is not None
        operation = memory.writes[0].operation
        unknown = unknown_operation(operation)
    assert (unknown.where, unknown.at) == (operation.where, operation.at)
    assert not unknown.live
    assert unknown_operation().where == ""
