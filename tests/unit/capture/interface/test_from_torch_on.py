"""What waits for torch within a phase, and what becomes of a phase for which it cannot be had."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork.capture.interface import from_torch_on as from_torch_on_module
from pytest_cudafork.capture.interface.from_torch_on import from_torch_on, whole
from pytest_cudafork.errors import GraphNotJudgedError
from pytest_cudafork.observe.base.after_import import Failed

WHAT = "captured graphs were not looked at"


class Look:
    """Notes when it is in force."""

    def __init__(self) -> None:
        self.is_on = False

    @contextlib.contextmanager
    def __call__(self, failed: Failed) -> Iterator[None]:
        """Be in force."""
        self.failed = failed
        self.is_on = True
        yield
        self.is_on = False


def no_look(failed: Failed) -> contextlib.AbstractContextManager[None]:
    """Refuse."""
    raise AttributeError("no capture_begin")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been imported."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))


@pytest.mark.usefixtures("torch")
def test_where_torch_is_there_it_is_in_force_at_once() -> None:
    look = Look()
    with from_torch_on(WHAT, look):
        assert look.is_on
    assert not look.is_on


def test_it_waits_for_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Any] = []

    def wait(name: str, callback: Any) -> Callable[[], None]:
        waiting.append(callback)
        return waiting.clear

    monkeypatch.setattr(from_torch_on_module, "after_import", wait)
    look = Look()
    with from_torch_on(WHAT, look):
        assert not look.is_on
        waiting[0](ModuleType("torch"))
        assert look.is_on
    assert not look.is_on
    assert waiting == []


@pytest.mark.usefixtures("torch")
def test_what_cannot_be_set_up_fails_the_phase_at_its_end() -> None:
    ran = []
    with pytest.raises(GraphNotJudgedError) as raised, from_torch_on(WHAT, no_look):
        ran.append(1)
    assert ran == [1]
    why = "AttributeError: no capture_begin"
    assert str(raised.value) == f"{WHAT}, as setting that up failed: {why}"
    assert isinstance(raised.value.__cause__, AttributeError)


@pytest.mark.usefixtures("torch")
def test_a_part_that_cannot_be_set_up_later_fails_the_phase_at_its_end() -> None:
    look = Look()

    def phase() -> None:
        with from_torch_on(WHAT, look):
            look.failed("triton.runtime.jit", KeyError("run"))
            look.failed("another", KeyError("other"))
            assert look.is_on

    with pytest.raises(GraphNotJudgedError) as raised:
        phase()
    why = "or not fully, as setting that up for triton.runtime.jit failed: KeyError: 'run'"
    assert str(raised.value) == f"{WHAT}, {why}"
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, pytest.skip.Exception])
def test_what_ends_the_phase_before_stays_what_it_is(error: type[BaseException]) -> None:
    with pytest.raises(error), from_torch_on(WHAT, no_look):
        raise error


def test_what_is_in_force_already_tells_of_its_parts_at_the_end() -> None:
    def use(*parts: str, error: Exception | None = None) -> None:
        with whole(WHAT) as failed:
            for part in parts:
                failed(part, AttributeError("no run"))
            if error is not None:
                raise error

    use()
    with pytest.raises(GraphNotJudgedError) as raised:
        use("triton", "torch._dynamo")
    why = "or not fully, as setting that up for triton failed: AttributeError: no run"
    assert str(raised.value) == f"{WHAT}, {why}"
    with pytest.raises(ZeroDivisionError):
        use("triton", error=ZeroDivisionError())
