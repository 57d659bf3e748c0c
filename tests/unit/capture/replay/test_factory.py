"""How ``create_forward_fn`` is called, what it may return, and in which words it gets the mode."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import GraphUsageError  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from pytest_cudafork.capture.replay.factory import Factory, check_mode, fields_of  # noqa: E402
from tests.support.capture import Desc, Mode, iter_nothing  # noqa: E402

X = torch.ones(4)


class GraphMode(enum.Enum):
    """What vLLM calls CUDAGraphMode."""

    NONE = "none"
    FULL = "full"


class Printed:
    """An argument that may not be printed within a capture: it holds a tensor."""

    def __init__(self) -> None:
        self.tensor = torch.ones(3)

    def __repr__(self) -> str:
        return f"Printed({self.tensor})"


class Runner:
    """Notes in which words it gets the mode."""

    def __init__(self) -> None:
        self.modes: list[Any] = []

    def forward(self, held: Printed, mode: GraphMode) -> Any:
        self.modes.append(type(mode))
        return held.tensor * 2


class Called(Runner):
    """An object that is the forward itself."""

    def __call__(self, mode: GraphMode) -> Any:
        return self.forward(Printed(), mode)

    def __repr__(self) -> str:
        return f"Called({Printed()})"


def _partial(runner: Called) -> Callable[..., Any]:
    return functools.partial(runner.forward, Printed())


def _of_a_partial(runner: Called) -> Callable[..., Any]:
    return functools.partial(functools.partial(runner.forward, Printed()))


@pytest.mark.parametrize("wrapped", [_partial, _of_a_partial, lambda runner: runner])
def test_a_wrapped_forward_gets_its_enumeration_and_is_not_printed(
    wrapped: Callable[[Called], Any],
) -> None:
    runner = Called()
    capture_pair(lambda desc, warmup: (wrapped(runner), {}), 1, backend="software")
    assert set(runner.modes) == {GraphMode}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "lack a return"),
        ((1, 2), "first of the two must be callable"),
        ("text", "returned 'text'"),
        ((lambda: 1, 2, 3), "returned"),
    ],
)
def test_a_factory_that_returns_something_else(made: Any, words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        capture_pair(lambda desc, warmup: made, Desc(4), backend="software")


@pytest.mark.parametrize("create", [3, lambda: None, lambda a, b, c: None])
def test_a_factory_that_cannot_be_called(create: Any) -> None:
    with pytest.raises(GraphUsageError, match="create_forward_fn"):
        capture_pair(create, Desc(4), backend="software")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ((lambda: X, 1, 2), "These are 3 values, and there are two"),
        ([lambda: X, {}], "a tuple, not a list"),
    ],
)
def test_what_a_factory_returned_instead(made: Any, words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        capture_pair(lambda desc, warmup: made, 4, backend="software")


@pytest.mark.parametrize(("mode", "given"), [(Mode.FULL, Mode.NONE), ("FULL", "NONE")])
def test_the_forward_gets_none_in_the_words_of_the_caller(mode: Any, given: Any) -> None:
    seen = []

    def create(desc: int, warmup: bool) -> Any:
        def forward(mode: Any) -> Any:
            seen.append(mode)
            return X * 2

        return forward, {}

    capture_pair(create, 4, mode=mode, backend="software")
    assert set(seen) == {given}


@pytest.mark.parametrize(
    ("create", "rebuilds"),
    [
        (lambda desc, warmup: (int, desc), False),
        (lambda desc, *, warmup: (int, desc), False),
        (lambda desc, **options: (int, desc), False),
        (lambda *args: (int, args[0]), False),
        (lambda desc: (int, desc), True),
        (lambda desc, other=1: (int, desc), True),
    ],
)
def test_a_factory_is_called_as_its_parameters_say(create: Any, rebuilds: bool) -> None:
    factory = Factory(create, 4)
    assert factory.rebuilds is rebuilds
    made = factory.build(warmup=True)
    assert (made.state, made.own_state) == (4, True)
    assert factory.build(warmup=False, desc=5).state == 5


def test_a_forward_alone_has_what_it_carries_for_a_state() -> None:
    weight = torch.ones(2)
    made = Factory(lambda desc: lambda: weight * desc, 4).build(warmup=True)
    assert not made.own_state
    assert made.state.weight is weight
    assert torch.equal(made.run("NONE", 4), torch.full((2,), 4.0))


def test_a_descriptor_for_another_mode_is_refused() -> None:
    check_mode("FULL", Desc(4, Mode.FULL))
    check_mode("FULL", 4)
    with pytest.raises(GraphUsageError, match=r"desc\.cg_mode is PIECEWISE, and mode is 'FULL'"):
        check_mode("FULL", Desc(4, Mode.PIECEWISE))


class Slotted:
    """A descriptor without a dictionary."""

    __slots__ = ("cg_mode", "size")

    def __init__(self, size: int, cg_mode: Mode) -> None:
        self.size, self.cg_mode = size, cg_mode


def _struct() -> Any:
    msgspec = pytest.importorskip("msgspec")
    return msgspec.defstruct("Struct", [("size", int), ("cg_mode", Mode)])


class Named(NamedTuple):
    """One that is a tuple."""

    size: int
    cg_mode: Mode


@pytest.mark.parametrize("kind", [lambda: Slotted, _struct, lambda: Named])
def test_a_descriptor_of_any_kind_of_class_is_refused(kind: Callable[[], Any]) -> None:
    desc = kind()(4, Mode.PIECEWISE)
    assert fields_of(desc) == {"size": 4, "cg_mode": Mode.PIECEWISE}
    with pytest.raises(GraphUsageError, match=r"desc\.cg_mode is PIECEWISE, and mode is 'FULL'"):
        check_mode("FULL", desc)


def test_a_forward_gets_the_mode_where_it_asks_for_one() -> None:
    def build(forward: Any, desc: Any = 4) -> Any:
        return Factory(lambda desc: (forward, {}), desc).build(warmup=True)

    assert build(lambda: "none").run("NONE", 4) == "none"
    assert build(lambda other=1: other).run("NONE", 4) == 1
    assert build(lambda graph_mode="x": graph_mode).run("NONE", 4) == "NONE"
    assert build(lambda mode: mode, Desc(4)).run("NONE", Desc(4)) is Mode.NONE
    with pytest.raises(GraphUsageError, match="forward_fn needs 2 arguments"):
        build(lambda a, b: a).run("NONE", 4)
    with pytest.raises(GraphUsageError, match="has not run"):
        build(lambda: iter_nothing()).run("NONE", 4)
