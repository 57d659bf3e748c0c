"""Rows of an earlier batch that say where a graph writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.judge.stale_rows import _nudge  # noqa: E402
from pytest_cudafork.capture.record.memory import Memories  # noqa: E402
from tests.support.captures import LateDevice, Looking, looking  # noqa: E402

ROWS, WIDTH, SLOTS = 4, 2, 16


class Writer:
    """Writes keys of a batch to a cache, at slots that ``places`` computes within the graph."""

    def __init__(self, look: Looking, places: Callable[[Any, Any], Any]) -> None:
        self.cache = torch.zeros(SLOTS, WIDTH)
        self.key = torch.ones(ROWS, WIDTH)
        self.slots = torch.zeros(ROWS, dtype=torch.int64)
        self.used = torch.zeros(ROWS, dtype=torch.int64)
        self.captured = look.capture(
            lambda: self.cache.index_copy_(0, places(self.slots, self.used), self.key)
        )

    def write(self, *slots: int, refill_all: bool = False, replay: bool = True) -> None:
        count = len(slots)
        self.used.copy_(torch.arange(ROWS) < count)
        self.slots[:count].copy_(torch.tensor(slots))
        if refill_all:
            self.slots[count:].zero_()
        if replay:
            self.captured.replay()


def as_they_are(slots: Any, used: Any) -> Any:
    return slots


def computed(slots: Any, used: Any) -> Any:
    return slots * 1


def masked(slots: Any, used: Any) -> Any:
    return slots * used


def suspicions(look: Looking) -> list[Any]:
    found = look.watching.take()
    assert "errors" not in found
    assert "not_judged" not in found
    return list(found.get("suspicions", ()))


@pytest.mark.parametrize("places", [as_they_are, computed])
def test_a_smaller_batch_leaves_slots_of_the_one_before(places: Any) -> None:
    with looking() as look:
        writer = Writer(look, places)
        writer.write(3, 9, 5, 12)
        assert suspicions(look) == []
        before = writer.cache.clone()
        writer.write(4, 7, replay=False)
        before[4] = before[7] = 1
        writer.captured.replay()
        (one,) = suspicions(look)
        assert one["kind"] == "stale-rows"
        assert "int64[4], of which the first 2 rows are of this batch" in one["what"]
        assert [what for what, _ in one["lines"]] == ["refilled in part at", "read by the graph at"]
        # what was tried has left nothing behind
        assert torch.equal(writer.cache, before)


def test_rows_are_tried_when_the_device_has_done_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with looking() as look:
        writer = Writer(look, computed)
        writer.write(3, 9, 5, 12)
        writer.write(4, 7, replay=False)
        found: list[Any] = []
        late = LateDevice(writer.captured.seen, monkeypatch)
        late.given.append(lambda: found.append(writer.cache.clone()))
        before = writer.cache.clone()
        writer.captured.replay()
        assert [each["kind"] for each in suspicions(look)] == ["stale-rows"]
        assert torch.equal(found[0], before)
        assert writer.slots.tolist() == [4, 7, 5, 12]


def test_rows_that_are_masked_in_the_graph_write_nowhere_else() -> None:
    with looking() as look:
        writer = Writer(look, masked)
        writer.write(3, 9, 5, 12)
        writer.write(4, 7)
        assert suspicions(look) == []


def test_rows_that_are_refilled_too_are_of_this_batch() -> None:
    with looking() as look:
        writer = Writer(look, as_they_are)
        writer.write(3, 9, 5, 12, refill_all=True)
        writer.write(4, 7, refill_all=True)
        assert suspicions(look) == []


def test_rows_that_no_batch_has_filled_yet_are_what_they_were_made() -> None:
    with looking() as look:
        writer = Writer(look, as_they_are)
        writer.write(3, 9)
        writer.write(4, 7)
        writer.write(4, 7, 5)
        assert suspicions(look) == []


def test_other_lines_may_fill_rows_one_by_one() -> None:
    with looking() as look:
        writer = Writer(look, as_they_are)
        writer.slots.copy_(torch.tensor([3, 9, 5, 12]))
        writer.captured.replay()
        writer.slots[:1].fill_(4)  # the others stay, and are meant to
        writer.captured.replay()
        assert suspicions(look) == []


def test_rows_that_are_values_and_no_places_are_left_alone() -> None:
    with looking() as look:
        tokens = torch.zeros(ROWS, dtype=torch.int64)
        cache = torch.zeros(ROWS, WIDTH)
        captured = look.capture(lambda: cache.copy_(tokens[:, None].expand(ROWS, WIDTH) * 2.0))
        for batch in ([1, 2, 3, 4], [5, 6]):
            tokens[: len(batch)].copy_(torch.tensor(batch))
            captured.replay()
        assert suspicions(look) == []
        assert cache[:, 0].tolist() == [10, 12, 6, 8]


def test_what_cannot_be_tried_is_put_back() -> None:
    def one_six_at_most(slots: Any, used: Any) -> Any:
        return slots + ((slots == 6).sum() > 1) * SLOTS  # out of range where there are more

    with looking() as look:
        writer = Writer(look, one_six_at_most)
        writer.write(3, 9, 5, 12)
        before = writer.cache.clone()
        writer.write(6)
        assert suspicions(look) == []
        for slot in (6, 9, 5, 12):
            before[slot] = 1
        assert torch.equal(writer.cache, before)
        assert writer.slots.tolist() == [6, 9, 5, 12]


def test_an_index_that_the_graph_makes_of_a_number_stays_within_its_range() -> None:
    with looking() as look:
        writer = Writer(look, as_they_are)
        position, table = torch.full((1,), SLOTS - 1.0), torch.zeros(SLOTS)

        def both() -> None:
            writer.cache.index_copy_(0, writer.slots * 1, writer.key)
            table.index_copy_(0, position.long(), torch.ones(1))
            position.add_(0)

        writer.captured = look.capture(both)
        writer.write(3, 9, 5, 12)
        writer.write(4, 7)  # with a larger position the graph would raise, and nothing be said
        (one,) = suspicions(look)
        assert one["kind"] == "stale-rows"
        assert position.tolist() == [SLOTS - 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_that_are_tried_are_the_next_ones_towards_zero(dtype: Any) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 7.0, 1e-3], dtype=dtype)
    before = values.clone()
    memory = Memories().of(values)
    assert memory is not None
    _nudge(memory)
    assert (values == before).tolist() == [True, True, False, False, False, False]
    assert bool((values.abs() <= before.abs()).all())
    assert bool((values.sign() == before.sign()).all())
    assert torch.allclose(values, before, rtol=1e-2)
