"""Results that no replay has computed yet, and what is computed of them."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.record import uncomputed  # noqa: E402
from pytest_cudafork.capture.record.history import History  # noqa: E402
from pytest_cudafork.capture.record.mode import HistoryMode  # noqa: E402


@pytest.fixture
def told() -> list[tuple[str, ...]]:
    """The lines that were told."""
    return []


@pytest.fixture
def history() -> History:
    """A history of nothing."""
    return History()


@pytest.fixture
def result(history: History, told: list[tuple[str, ...]]) -> Any:
    """Memory that a replay has yet to fill."""
    made = torch.ones(4)
    memory = history.memories.of(made)
    assert memory is not None
    history.uncomputed.add(memory, lambda *lines: told.append(lines))
    return made


def test_it_is_told_once_that_the_host_reads_it(history: History, result: Any, told: Any) -> None:
    with HistoryMode(history):
        result[0].item()
        result[0].item()
    assert len(told) == 1
    assert not history.uncomputed.waits


def test_what_is_computed_of_it_is_told_with_the_line_that_took_it(
    history: History, result: Any, told: Any
) -> None:
    with HistoryMode(history):
        copied = result.clone()
        total = torch.stack([copied, copied]).sum()
        total.item()
    ((taken, read),) = told
    assert int(read.rpartition(":")[2]) == int(taken.rpartition(":")[2]) + 2


def test_what_is_overwritten_before_is_not_told(history: History, result: Any, told: Any) -> None:
    with HistoryMode(history):
        result.add_(1)
        result.fill_(1)
        result.sum().item()
        torch.empty_like(result).fill_(2).sum().item()
    assert told == []


def test_in_place_work_on_it_leaves_it_as_unknown_as_it_was(
    history: History, result: Any, told: Any
) -> None:
    with HistoryMode(history):
        other = torch.zeros(4)
        torch.add(result.mul_(2), 1, out=other)
        assert not torch.equal(other, torch.zeros(4))
    assert len(told) == 1


def test_a_replay_or_a_kernel_fills_it(history: History, result: Any, told: Any) -> None:
    memory = history.memories.of(result)
    assert memory is not None
    history.uncomputed.filled(memory)
    assert not history.uncomputed.waits
    with HistoryMode(history):
        result.sum().item()
    assert told == []


def test_it_is_followed_for_so_many_operators_alone(
    history: History, result: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncomputed, "_MOST_OPERATORS", 3)
    memory = history.memories.of(result)
    assert memory is not None
    history.uncomputed.add(memory, lambda *lines: told.append(lines))
    with HistoryMode(history):
        for _ in range(5):
            torch.ones(2) + 1
        result.sum().item()
    assert (told, history.uncomputed.waits) == ([], False)
