"""What is learned of operators."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.operators import Operators, draws_nothing  # noqa: E402


def test_each_operator_is_learned_once() -> None:
    operators: Any = Operators()
    aten = torch.ops.aten
    add: Any = operators(aten.add.Tensor)
    assert operators(aten.add.Tensor) == add
    assert add.again
    assert not any((add.draws, add.heavy, add.copies, add.written))
    written: Any = operators(aten.copy_.default)
    assert written.copies
    assert set(written.written) == {0, "self"}
    assert operators(aten.mm.default).heavy
    rand: Any = operators(aten.bernoulli_.float)
    assert rand.draws
    assert rand.by_generator
    assert not rand.again
    assert operators(aten.reshape.default).copies
    assert operators(torch.ops.higher_order.cond) is None


def test_dropout_that_is_off_draws_nothing() -> None:
    dropout: Any = Operators()(torch.ops.aten.native_dropout.default)
    x = torch.ones(2)
    assert draws_nothing(dropout, (x, 0.0, True), {})
    assert draws_nothing(dropout, (x, 0.5, False), {})
    assert not draws_nothing(dropout, (x, 0.5, True), {})
    assert draws_nothing(dropout, (x,), {"p": 0.5, "train": False})


def test_what_takes_a_generator_draws_unless_it_does_not_train() -> None:
    operators, x = Operators(), torch.ones(2)
    bernoulli: Any = operators(torch.ops.aten.bernoulli_.float)
    assert not draws_nothing(bernoulli, (x, 0.0), {})
    rrelu: Any = operators(torch.ops.aten.rrelu_with_noise.default)
    assert draws_nothing(rrelu, (x, x, 0.1, 0.3, False), {})
    assert not draws_nothing(rrelu, (x, x, 0.1, 0.3, True), {})
