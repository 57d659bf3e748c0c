"""The line that set something is found by a trace, which leaves nothing behind."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from pytest_cudafork.capture.pair.traced_lines import (  # noqa: E402
    Slot,
    changed_slots,
    lines_that_set,
)
from pytest_cudafork.capture.state.snapshot import MISSING, Snapshot, changes  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


def test_the_trace_function_is_as_before() -> None:
    def mine(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        with pytest.raises(CapturePairError):
            Runner(keep=lambda warmup: "one").check()
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


class Box:
    """An object with an attribute that is set and one that is not."""

    value: Any = None


def slots(*values: Any) -> list[Slot]:
    return [Slot(f"x{n}", value, "value", True) for n, value in enumerate(values)]


def test_the_line_that_sets_a_slot() -> None:
    one, other = Box(), Box()

    def run() -> None:
        one.value = 3

    first = run.__code__.co_firstlineno
    assert lines_that_set(run, slots(one, other)) == {"x0": f"{__file__}:{first + 1}"}


def test_another_object_at_the_address_of_the_one_that_was_there_is_a_change() -> None:
    one = Box()
    one.value = [1]

    text = "def run():\n    one.value = None; one.value = [2]\n"  # it gets the memory of [1]
    names: dict[str, Any] = {"one": one}
    exec(compile(text, __file__, "exec"), names)
    assert lines_that_set(names["run"], slots(one)) == {"x0": f"{__file__}:2"}


def test_an_error_ends_the_search_with_what_was_found() -> None:
    one = Box()

    def run() -> None:
        one.value = 3
        raise KeyError

    assert list(lines_that_set(run, slots(one))) == ["x0"]


def test_a_change_in_place_is_one() -> None:
    tensor, items = torch.zeros(2), [1]

    def run() -> None:
        tensor.add_(1)
        items.append(2)

    found = lines_that_set(
        run, [Slot("t", [tensor], 0, False), Slot("i", {"i": items}, "i", False)]
    )
    first = run.__code__.co_firstlineno
    assert found == {"t": f"{__file__}:{first + 1}", "i": f"{__file__}:{first + 2}"}


class Frame:
    """A frame of the user's, at a line."""

    def __init__(self, line: int, back: Any = None, file: str = __file__) -> None:
        self.f_lineno, self.f_back = line, back
        self.f_code = type("Code", (), {"co_filename": file})


def test_the_tracer_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter calls it with: a debugger that is at work sees nothing of it."""
    traces: list[Any] = []
    monkeypatch.setattr(sys, "settrace", traces.append)
    one, other = Box(), Box()

    def run() -> None:
        trace: Any = traces[0]
        outer = Frame(10)
        local = trace(outer, "call", None)
        one.value = 1
        inner: Any = Frame(20, outer)
        assert trace(inner, "call", None) == local, "the caller's line has set the first"
        assert trace(Frame(1, file=torch.__file__), "call", None) is None
        other.value = 2
        assert local(inner, "return", None) is None, "nothing is left to be found"
        assert trace(Frame(30), "call", None) is None

    assert lines_that_set(run, slots(one, other)) == {
        "x0": f"{__file__}:10",
        "x1": f"{__file__}:20",
    }


def test_where_something_lies_in_another_state() -> None:
    first: dict[str, Any] = {"a": Box(), "plan": None}
    second: dict[str, Any] = {"a": Box(), "plan": None}
    before = Snapshot(first, "state")
    first["a"].value = 3
    first["new"] = 4
    first["plan"] = torch.ones(1)
    after = Snapshot(first, "state")
    target = Snapshot(second, "state")
    found = changed_slots(changes(before, after), after, target)
    assert {slot.path for slot in found} >= {"state['new']", "state['plan']"}
    assert all(slot.owner is not first for slot in found)
    new = next(slot for slot in found if slot.path == "state['new']")
    assert new.owner is second
    assert new.get() is MISSING
    second["new"] = 5
    assert new.get() == 5
