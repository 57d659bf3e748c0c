"""What is kept of how memory came about, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.seen import SeenCapture  # noqa: E402
from pytest_cudafork.capture.record.history import History  # noqa: E402
from pytest_cudafork.capture.record.memory import Memory  # noqa: E402
from pytest_cudafork.capture.record.mode import HistoryMode  # noqa: E402
from pytest_cudafork.capture.record.uses import GraphUses  # noqa: E402
from pytest_cudafork.capture.record.values import MOST_DEPTH, MOST_OVERLAYS, Computed  # noqa: E402


def of(history: History, tensor: Any) -> Memory:
    found = history.memories.get(tensor)
    assert found is not None
    return found


def test_chains_that_begin_in_whole_numbers_are_kept_and_activations_are_not() -> None:
    history = History()
    with HistoryMode(history):
        lengths = torch.tensor([1, 2])
        scale = 1.0 / lengths
        weights = torch.randn(300, 2)
        hidden = weights * 2
        deep = torch.nn.functional.embedding(lengths, weights) + 1
    assert of(history, scale).live
    assert of(history, scale).where.startswith(__file__)
    for activation in (hidden, deep):
        assert not of(history, activation).live
        assert of(history, activation).activation


def test_everything_is_kept_if_that_is_asked_for_but_for_heavy_work() -> None:
    history = History(everything=True)
    with HistoryMode(history):
        weights = torch.randn(4, 4)
        doubled = weights * 2
        product = doubled @ weights
        after = product + 1
    assert of(history, doubled).live
    assert not of(history, product).live
    assert not of(history, after).live


def test_writes_are_kept_by_part_and_whole_ones_take_their_place() -> None:
    history = History()
    with HistoryMode(history):
        buffer = torch.zeros(16, dtype=torch.long)
        buffer[:2] = torch.tensor([1, 2]) * 2
        assert len(of(history, buffer).writes) == 2
        buffer[:2] = torch.tensor([1, 2]) * 3
        assert len(of(history, buffer).writes) == 2
        buffer.copy_(torch.arange(16) * 2)
        assert len(of(history, buffer).writes) == 1
        for index in range(MOST_OVERLAYS + 1):
            buffer[index] = torch.arange(20)[index] * 2
        writes = of(history, buffer).writes
    assert len(writes) <= MOST_OVERLAYS
    assert writes[0].operation.computed is Computed.UNKNOWN


def test_a_chain_has_an_end() -> None:
    history = History()
    with HistoryMode(history):
        x = torch.tensor([1])
        for _ in range(MOST_DEPTH + 5):
            x = x + 1
        (write,) = of(history, x).writes
    assert write.operation.depth < MOST_DEPTH


def test_what_is_changed_in_place_out_of_nothing_known_is_state() -> None:
    history = History()
    state = torch.zeros(3000)  # from before
    with HistoryMode(history):
        state.add_(torch.tensor([1]))
        assert not of(history, state).live
        state.mul_(2.0)
        history.forget()
        assert of(history, state).where == ""
        assert not history.host


def test_random_numbers_cannot_be_had_again() -> None:
    history = History()
    with HistoryMode(history):
        drawn = torch.randint(0, 9, (3,))
        mixed = drawn + 1
    assert of(history, drawn).writes[0].operation.computed is Computed.UNKNOWN
    assert of(history, mixed).live


def test_numbers_that_the_host_reads_are_noted() -> None:
    history = History()
    with HistoryMode(history):
        total = torch.tensor([4, 5]).sum()
        assert total.item() == 9
        with history.pause():
            assert total.item() == 9
    (number,) = history.host
    assert number.value == 9
    assert number.where.startswith(__file__)


def test_memory_that_is_handed_out_is_empty_until_it_is_filled() -> None:
    history = History()
    with HistoryMode(history):
        made = torch.empty(4, dtype=torch.long)
        assert of(history, made).filled == 0
        made[:3].fill_(1)
        assert of(history, made).filled == 3
        made.add_(1)
        assert of(history, made).filled == -1


def test_a_result_that_is_spoiled_is_told_when_it_is_read_and_not_when_written() -> None:
    history = History()
    told: list[str] = []
    with HistoryMode(history):
        x = torch.tensor([1, 2]) + 1
        history.spoiled[of(history, x)] = told.append
        x[:1].copy_(torch.tensor([3]))
        assert told == []
        torch.stack([x, x])
        assert len(told) == 1
        x.sum()
        history.spoiled[of(history, x)] = told.append
        x.copy_(torch.tensor([3, 4]))
        x.sum()
    assert len(told) == 1


def test_what_is_no_part_of_a_graph_is_history_as_usual() -> None:
    history, x = History(), torch.tensor([1, 2])
    with HistoryMode(history, SeenCapture(1, "software", "")):
        history.uses = uses = GraphUses(0)
        with history.outside_of_capture():
            twice = x * 2
        assert history.uses is uses
        assert (uses.work, uses.reads) == (0, {})
        made = twice + 3
    assert (of(history, twice).live, of(history, twice).owner) == (True, None)
    assert list(uses.reads) == [of(history, twice)]
    assert of(history, made).owner is uses
    assert uses.work == 1
