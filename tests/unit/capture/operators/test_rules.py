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
from tests.support.torch import torch_release  # noqa: E402

GONE = {"cholesky": (2, 14)}
"""Operators that torch has had, and the first release without them."""
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
    there = any(hasattr(one, name) for one in namespaces)
    expected = torch_release() < GONE.get(name, (99,))
    assert there == expected, f"torch has {'an' if there else 'no'} operator {name}"


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


def test_numbers_that_decide_on_the_device_are_waited_for() -> None:
    number = torch.tensor(1.0)
    assert waits("normal", number, number)
    assert waits("normal", 0.0, number)
    assert not waits("normal", number, 1.0)
    assert not waits("normal", number, number, on_host=True)
    assert waits("index_fill", ROWS, 0, ROWS, number)
    assert waits("index_fill_", ROWS, 0, ROWS, value=number)
    assert not waits("index_fill", ROWS, 0, ROWS, 3)
    assert waits("masked_fill", ROWS, ROWS, number)
    assert waits("masked_fill_", ROWS, ROWS, value=number)
    assert not waits("masked_fill", ROWS, ROWS, 3)


def test_many_elements_are_sorted_to_be_found() -> None:
    few, many = torch.zeros(5), torch.zeros(40)
    assert waits("isin", few, many)
    assert not waits("isin", many, few)
    assert not waits("isin", few, many, assume_unique=True)
    assert not waits("isin", few, 3)
    assert not waits("isin", torch.zeros(0), many)


def test_what_is_checked_is_waited_for() -> None:
    assert waits("searchsorted", ROWS, ROWS, sorter=ROWS)
    assert not waits("searchsorted", ROWS, ROWS)
    assert waits("segment_reduce", ROWS, "max", lengths=ROWS)
    assert not waits("segment_reduce", ROWS, "max", lengths=ROWS, unsafe=True)
    assert not waits("segment_reduce", ROWS, "max", offsets=ROWS)


def test_long_rows_are_counted_elsewhere() -> None:
    assert waits("mode", torch.zeros(3000))
    assert not waits("mode", torch.zeros(3000, 2))
    assert waits("mode", torch.zeros(3000, 2), 0)
    assert not waits("mode", torch.tensor(1.0), 0)


@pytest.mark.parametrize("name", ["_linalg_eigh", "_linalg_svd", "linalg_eigvals", "linalg_pinv"])
def test_factors_of_no_matrix_are_not_waited_for(name: str) -> None:
    assert waits(name, torch.zeros(2, 2))
    assert not waits(name, torch.zeros(0, 2, 2))


def test_one_square_matrix_is_factored_without_waiting() -> None:
    assert not waits("linalg_lu_factor_ex", torch.zeros(3, 3))
    assert waits("linalg_lu_factor_ex", torch.zeros(3, 5))
    assert waits("linalg_lu", torch.zeros(2, 3, 3))
    assert not waits("linalg_lu", torch.zeros(0, 3, 5))
    assert not waits("cholesky_solve", torch.zeros(3, 3), torch.zeros(3, 3))
    assert waits("cholesky_inverse", torch.zeros(2, 3, 3))
