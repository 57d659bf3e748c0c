"""Orders of packed tests: what they lead to, as the decisions while tests run would have it."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.gpus.order import Planned, best_order, seconds_of
from pytest_cudafork.gpus.packing import PARTS, Card, Request

ONE = (Card("a", 100),)
TWO = (Card("a", 100), Card("b", 100))


def planned(seconds: float, memory: int | None = None, n: int = 1, **about: Any) -> Planned:
    return Planned(Request(n, ("a", "b"), memory=memory, **about), seconds)


@pytest.mark.parametrize(
    ("tests", "cards", "workers", "expected"),
    [
        ([], ONE, 2, 0),
        ([planned(2), planned(3)], ONE, 2, 5),
        ([planned(2), planned(3)], TWO, 2, 3),
        ([planned(2), planned(3)], TWO, 1, 5),
        ([planned(2, 50), planned(3, 50)], ONE, 2, 3),
        ([planned(2, 50), planned(3, 51)], ONE, 2, 5),
        ([planned(2, 50), planned(3, 51), planned(2, 50)], ONE, 3, 5),
        ([planned(2, 60), planned(3, 60, n=2)], TWO, 2, 5),
        ([planned(2, parts=1)] * 4, ONE, 4, 2),
        ([planned(2, 101)], ONE, 2, math.inf),
        ([planned(2, 50), planned(1, n=3)], TWO, 2, math.inf),
    ],
)
def test_what_an_order_leads_to(
    tests: list[Planned], cards: tuple[Card, ...], workers: int, expected: float
) -> None:
    assert seconds_of(tests, cards, workers) == expected


def test_without_others_beside_it_the_longest_starts_first_and_those_of_many_gpus_before() -> None:
    tests = [planned(1, 50), planned(5, 10), planned(2, 50, n=2), planned(3, 90)]
    assert best_order(tests, TWO, 1) == [2, 1, 3, 0]
    assert best_order([], TWO, 4) == []


def test_an_order_that_ends_sooner_is_found() -> None:
    # By length alone the second of 60 waits for the first, and keeps the other worker waiting.
    tests = [planned(5, 60), planned(5, 60), planned(4, 40), planned(4, 40)]
    assert seconds_of(tests, ONE, 2) == 13
    assert seconds_of([tests[one] for one in best_order(tests, ONE, 2)], ONE, 2) == 10


TESTS = st.lists(
    st.builds(
        planned,
        st.integers(1, 20),
        st.none() | st.integers(1, 100),
        n=st.integers(1, 2),
        parts=st.sampled_from([1, PARTS]),
    ),
    max_size=12,
)


@given(TESTS, st.integers(1, 6))
def test_the_best_is_an_order_and_no_worse_than_by_length(
    tests: list[Planned], workers: int
) -> None:
    order = best_order(tests, TWO, workers)
    assert sorted(order) == list(range(len(tests)))
    assert order == best_order(tests, TWO, workers), "all workers find the same"
    found = seconds_of([tests[one] for one in order], TWO, workers)
    by_length = sorted(tests, key=lambda one: (-one.request.n, -one.seconds))
    assert found <= seconds_of(by_length, TWO, workers) < math.inf
    assert found >= sum(one.seconds for one in tests) / workers - 1e-9


def test_of_many_tests_few_orders_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def count(tests: Any, cards: Any, workers: int) -> float:
        played.append(len(tests))
        return 1.0

    monkeypatch.setattr("pytest_cudafork.gpus.order.seconds_of", count)
    for size, times in ((60, 30), (1000, 2), (5000, 0)):
        played.clear()
        chance = random.Random(0)
        best_order([planned(chance.random(), 50) for _ in range(size)], TWO, 6)
        assert played == [size] * times
