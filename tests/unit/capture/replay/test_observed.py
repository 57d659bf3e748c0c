"""Eager runs that are watched: the line where two of them part, and rows that collide."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.replay.observed import (  # noqa: E402
    collisions,
    filling,
    unlike_line,
)
from pytest_cudafork.capture.story.findings import source_of  # noqa: E402

X = torch.ones(4)


def line(run: Callable[[], Any]) -> str:
    return source_of(unlike_line(run, lambda: None))


def test_a_number_of_python_is_where_the_runs_part() -> None:
    count = itertools.count()

    def run() -> Any:
        x = X + 1
        x = x * next(count)  # here
        return x.sum()

    assert line(run).endswith("# here")


def test_a_tensor_of_its_own_is_where_the_runs_part() -> None:
    count = itertools.count()

    def run() -> Any:
        x = X.cos()
        noise = torch.full((4,), float(next(count)))  # here
        return x + noise

    assert line(run).endswith("# here")


def test_another_branch_is_where_the_runs_part() -> None:
    turns = itertools.cycle([True, False])

    def run() -> Any:
        if next(turns):
            return X + 1
        return X - 1  # here

    assert line(run).endswith("# here")


def test_the_line_may_be_in_a_branch_of_cond() -> None:
    count = itertools.count()

    def branch(x: Any) -> Any:
        return x + next(count)  # here

    def run() -> Any:
        return torch.ops.higher_order.cond(True, branch, branch, (X,)) * 2

    assert line(run).endswith("# here")


def test_runs_that_are_alike_part_nowhere() -> None:
    nan = torch.full((2,), float("nan"), dtype=torch.complex64)
    assert unlike_line(lambda: (X + 1, nan * 2, X.to_sparse()), lambda: None) == ""


def test_what_the_runs_start_from_is_put_back() -> None:
    x = torch.zeros(2)
    assert unlike_line(lambda: x.add_(1), lambda: x.zero_()) == ""
    assert x.tolist() == [0, 0]


CACHE = torch.zeros(8, 2)
ROWS = torch.randn(4, 2)


@pytest.mark.parametrize(
    ("slots", "places"), [([0, 1, 1, 5], "1"), ([0, 1, 0, 1], "0, 1"), ([0, 1, 7, 7], "")]
)
@pytest.mark.parametrize("how", ["index_put", "index_copy", "two indices"])
def test_padded_rows_that_are_written_where_live_ones_are(
    how: str, slots: list[int], places: str
) -> None:
    index = torch.tensor(slots)

    def run() -> None:
        if how == "index_put":
            CACHE[index] = ROWS
        elif how == "index_copy":
            CACHE.index_copy_(0, index, ROWS)
        else:
            CACHE.view(4, 2, 2)[index // 2, index % 2] = ROWS

    found = [one.words for one in collisions(run, 2, 4)]
    assert len(found) == bool(places)
    if places:
        assert f"at {places}, where it writes live rows" in found[0]


@pytest.mark.parametrize(("slots", "places"), [([0, 1, 1, 5], "2, 3"), ([0, 1, 7, 7], "")])
@pytest.mark.parametrize(
    "write",
    [
        lambda index: CACHE.scatter_(0, index[:, None].expand(4, 2), ROWS),
        lambda index: CACHE.scatter(-2, index[:, None].expand(4, 2), ROWS),
        lambda index: CACHE.put_(2 * index[:, None] + torch.arange(2), ROWS),
        lambda index: CACHE.put(2 * index[:, None] + torch.arange(2), ROWS),
    ],
)
def test_padded_rows_that_are_written_element_by_element(
    write: Callable[[Any], Any], slots: list[int], places: str
) -> None:
    found = [one.words for one in collisions(lambda: write(torch.tensor(slots)), 2, 4)]
    assert len(found) == bool(places)
    if places:
        assert f"at {places}, where it writes live rows" in found[0]


SAME = torch.zeros(4, 2, dtype=torch.int64)


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize(
    "run",
    [
        lambda: CACHE.scatter_(1, SAME, ROWS),  # each row writes into its own
        lambda: CACHE.scatter_(0, SAME, 1.0),
        lambda: CACHE.scatter_(0, SAME, ROWS, reduce="add"),
        lambda: CACHE.scatter_(0, SAME[:2], ROWS),  # of other rows
        lambda: torch.zeros(()).scatter_(0, torch.tensor(0), torch.tensor(1.0)),
        lambda: CACHE.scatter_(0, SAME[:, :0], ROWS),
        lambda: CACHE.put_(SAME, ROWS, accumulate=True),
        lambda: CACHE.index_put_((torch.tensor([0, 1, 0, 1]),), ROWS, accumulate=True),
        lambda: CACHE.index_copy_(0, torch.tensor([0, 0]), ROWS[:2]),  # of other rows
        lambda: CACHE.__setitem__(CACHE > 0, 3.0),
        lambda: CACHE.__setitem__(torch.tensor(1), ROWS[0]),
    ],
)
def test_other_writes_say_nothing_of_rows(run: Callable[[], Any]) -> None:
    assert collisions(run, 2, 4) == []


@pytest.mark.parametrize("value", [0, 1])
def test_memory_that_is_handed_out_is_filled_and_told_with_its_lines(value: int) -> None:
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
