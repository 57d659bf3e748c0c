"""What travels between the process of a session and one that runs a test once more."""

from __future__ import annotations

import pytest

from pytest_cudafork.capture.rerun.orders import AS_IT_IS, IDLE, Counted, Order, read_order


@pytest.mark.parametrize("order", [Order(IDLE, 7), Order("changed", 100)])
def test_an_order_travels_as_the_text_of_a_variable(order: Order) -> None:
    assert read_order(order.text()) == order


def test_without_the_variable_replays_are_as_they_are() -> None:
    assert read_order("") == Order(AS_IT_IS)


@pytest.mark.parametrize("counted", [Counted(), Counted(3, 2, True, 4)])
def test_what_was_counted_travels_as_the_text_of_a_property(counted: Counted) -> None:
    assert Counted.read(counted.text()) == counted


@pytest.mark.parametrize("text", ["", "1 2", "1 2 x"])
def test_another_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid"):
        Counted.read(text)
