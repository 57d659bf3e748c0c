"""What was there before is there again afterwards, also after an error."""

from __future__ import annotations

import contextvars
from types import SimpleNamespace

import pytest

from pytest_cudafork.capture.interface.meanwhile import attribute_set, variable_set

VARIABLE = contextvars.ContextVar("cudafork_test_variable", default=0)


def test_a_variable_has_another_value_meanwhile() -> None:
    with variable_set(VARIABLE, 1):
        with variable_set(VARIABLE, 2):
            assert VARIABLE.get() == 2
        assert VARIABLE.get() == 1
    with pytest.raises(ZeroDivisionError), variable_set(VARIABLE, 1):
        VARIABLE.set(1 // 0)
    assert VARIABLE.get() == 0


def test_it_may_end_in_another_context_than_it_began_in() -> None:
    meanwhile = variable_set(VARIABLE, 1)
    contextvars.copy_context().run(meanwhile.__enter__)
    meanwhile.__exit__(None, None, None)
    assert VARIABLE.get() == 0


def test_an_attribute_has_another_value_meanwhile() -> None:
    owner = SimpleNamespace(paused=False)
    with attribute_set(owner, "paused", True):
        assert owner.paused
    with pytest.raises(ZeroDivisionError), attribute_set(owner, "paused", True):
        owner.paused = 1 // 0
    assert owner.paused is False
