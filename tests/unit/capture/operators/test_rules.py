"""The table of operators: every row is of use, and its conditions say when a call waits."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.operators.rules import (  # noqa: E402
    ALLOCATING,
    NO_RULE,
    RULES,
    Kind,
    Rule,
    always,
)

MASK = torch.tensor([True, False])
ROWS = torch.tensor([0, 1])


def waits(name: str, *args: Any, on_host: bool = False, **kwargs: Any) -> bool:
    """Whether a call of an operator waits for values."""
    condition = RULES[name].on_values
    assert condition is not None, f"{name} never does"
    return condition(args, kwargs, lambda tensor: on_host)


@pytest.mark.parametrize("name", RULES)
def test_a_row_names_an_operator_of_torch(name: str) -> None:
    namespaces = torch.ops.aten, torch.ops.prims
    assert any(hasattr(one, name) for one in namespaces), f"torch has no operator {name}"


@pytest.mark.parametrize("name", RULES)
def test_a_row_says_something(name: str) -> None:
    assert RULES[name] != NO_RULE == Rule()
    assert not name.startswith(ALLOCATING), "the beginning of its name says it"


def test_a_row_that_waits_says_when() -> None:
    assert all(rule.on_values is not None for rule in RULES.values() if rule.waits)
    syncs = {name for name, rule in RULES.items() if rule.kind is Kind.SYNC}
    assert {"_local_scalar_dense", "equal", "is_nonzero"} <= syncs


def test_some_operators_always_wait() -> None:
    assert waits("nonzero", ROWS)
    assert always((), {}, lambda tensor: True)


def test_repeat_interleave_waits_without_the_size_of_its_result() -> None:
    assert waits("repeat_interleave", ROWS)
    assert not waits("repeat_interleave", ROWS, output_size=4)


def test_a_range_waits_for_ends_on_the_device() -> None:
    end = torch.tensor(3.0)
    assert not waits("linspace", 0, 1, 5)
    assert waits("linspace", 0, end, 5)
    assert waits("logspace", start=end, end=1, steps=5)
    assert not waits("linspace", 0, end, 5, on_host=True)


def test_a_histogram_without_a_range_looks_for_one() -> None:
    assert waits("histc", ROWS)
    assert waits("histc", ROWS, 100, 2, 2)
    assert not waits("histc", ROWS, 100, 0, 4)
    assert not waits("histc", ROWS, min=0, max=4)


def test_a_mask_has_a_result_of_unknown_size() -> None:
    assert waits("index", ROWS, [MASK])
    assert waits("index", ROWS, [None, MASK.to(torch.uint8)])
    assert not waits("index", ROWS, [ROWS])


def test_a_number_of_the_host_may_be_assigned_to_a_mask() -> None:
    number = torch.tensor(1.0)
    assert not waits("index_put_", ROWS, [MASK], number, on_host=True)
    assert waits("index_put_", ROWS, [MASK], number)
    assert waits("index_put_", ROWS, [MASK], ROWS, on_host=True)
    assert waits("index_put_", ROWS, [MASK], number, True, on_host=True)
    assert waits("index_put_", ROWS, [MASK, ROWS], number, on_host=True)
    assert not waits("index_put_", ROWS, [ROWS], ROWS)
