"""Putting a hook into a function unnoticed, whatever its parameters."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Generator
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.base.hooking import calling_stack, hook, namespace_of
from pytest_cudafork.observe.base.undo import UndoStack

NAMES = ("alpha", "beta", "gamma", "delta", "self", "args", "kwargs")
KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., Any]:
    """Draw a function of any signature that returns its arguments."""
    kinds = sorted(draw(st.lists(st.sampled_from(KINDS), max_size=len(NAMES))))
    parameters: list[inspect.Parameter] = []
    for name, kind in zip(NAMES, kinds, strict=False):
        if kind in KINDS[2::2] and any(p.kind == kind for p in parameters):
            continue
        had = any(p.default is not p.empty for p in parameters if p.kind in KINDS[:2])
        plain = kind in KINDS[2::2] or not (
            draw(st.booleans()) or (had and kind != inspect.Parameter.KEYWORD_ONLY)
        )
        default = inspect.Parameter.empty if plain else draw(st.integers())
        parameters.append(inspect.Parameter(name, kind, default=default))
    signature = inspect.Signature(parameters)
    names = ", ".join(f"{name!r}: {name}" for name in signature.parameters)
    space: dict[str, Any] = {}
    exec(f"def function{signature}:\n    return {{{names}}}", space)
    made: Callable[..., Any] = space["function"]
    return made


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error)


def passing(seen: list[Any]) -> Callable[..., Any]:
    def around(
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: FrameType | None,
    ) -> Any:
        seen.append(calling_stack(caller))
        return proceed(*args, **kwargs)

    return around


@given(
    function=functions(),
    args=st.lists(st.integers(), max_size=5),
    kwargs=st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=4),
)
def test_a_hooked_function_takes_and_refuses_the_same_arguments(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
    owner = SimpleNamespace(function=function)
    before = outcome(function, args, kwargs), inspect.signature(function), function.__code__
    undo, seen = UndoStack(), []  # type: UndoStack, list[Any]
    hook(undo, owner, "function", passing(seen))
    assert owner.function is function
    assert (outcome(function, args, kwargs), inspect.signature(function)) == before[:2]
    assert bool(seen) == isinstance(before[0], dict)
    undo()
    assert function.__code__ is before[2]


def test_a_name_imported_and_a_cache_made_earlier_are_hooked_too() -> None:
    def answer(number: int) -> int:
        return number + 1

    cached = functools.cache(answer)
    seen: list[Any] = []
    undo = UndoStack()
    hook(undo, SimpleNamespace(answer=answer), "answer", passing(seen))
    assert (cached(1), cached(1), answer(2)) == (2, 2, 3)
    assert len(seen) == 2
    cached.cache_clear()
    undo()
    assert (cached(1), len(seen)) == (2, 2)


def test_the_stack_starts_at_the_caller_and_has_no_frame_of_ours() -> None:
    def inner() -> None: ...

    def outer() -> None:
        inner()

    seen: list[Any] = []
    undo = UndoStack()
    hook(undo, SimpleNamespace(inner=inner), "inner", passing(seen))
    hook(undo, SimpleNamespace(outer=outer), "outer", passing([]))
    here = sys._getframe().f_lineno + 1
    outer()
    undo()
    names = [(line, name.rpartition(".")[2]) for _, line, name, _ in seen[0]]
    names = [item for item in names if item[1] != "around"]  # the hook of outer, in this file
    first_line = outer.__code__.co_firstlineno
    assert names[:2] == [(first_line + 1, "outer"), (here, sys._getframe().f_code.co_name)]
    assert seen[0][0][0] == __file__


def test_a_generator_function_stays_one_and_is_watched_when_it_starts() -> None:
    def numbers(first: int = 1) -> Generator[int, int, str]:
        got = yield first
        yield got
        return "end"

    seen: list[Any] = []
    undo = UndoStack()
    hook(undo, SimpleNamespace(numbers=numbers), "numbers", passing(seen))
    generator = numbers(5)
    assert inspect.isgeneratorfunction(numbers)
    assert seen == []
    assert (next(generator), generator.send(7), len(seen)) == (5, 7, 1)
    with pytest.raises(StopIteration, match="end"):
        next(generator)
    undo()


def test_a_traceback_shows_the_head_of_a_hooked_function_and_then_where_it_is() -> None:
    number = 3

    def fails(first: int, /, *rest: int, last: int = 0, **more: int) -> int:
        found = first + number
        raise LookupError(found, rest, last, more)

    def fails_later(count: int) -> Generator[int, None, None]:
        yield from range(count)
        raise LookupError(number)

    undo = UndoStack()
    owner = SimpleNamespace(fails=fails, fails_later=fails_later)
    for name in vars(owner):
        hook(undo, owner, name, passing([]))
    for function, call in ((fails, lambda: fails(1, 2)), (fails_later, lambda: [*fails_later(2)])):
        with pytest.raises(LookupError) as caught:
            call()
        entries = traceback.extract_tb(caught.value.__traceback__)
        head, *inside = [each for each in entries if each.name == function.__name__]
        first_line = function.__code__.co_firstlineno
        assert (head.lineno, [each.lineno for each in inside]) == (first_line, [first_line + 2])
        if sys.version_info >= (3, 11):  # nothing of that line is underlined
            assert {each[2:] for each in function.__code__.co_positions()} == {(None, None)}
    undo()


def test_a_method_with_super_and_a_static_new_can_be_hooked() -> None:
    class Base:
        def __new__(cls, *args: Any) -> Any:
            return super().__new__(cls)

        def name(self) -> str:
            return "base"

    class Derived(Base):
        def __new__(cls, *args: Any) -> Any:
            return super().__new__(cls, *args)

        def name(self) -> str:
            return "derived of " + super().name()

    seen: list[Any] = []
    undo = UndoStack()
    for name in ("__new__", "name"):
        hook(undo, Derived, name, passing(seen))
    assert (Derived(1).name(), len(seen)) == ("derived of base", 2)
    undo()
    assert (Derived(1).name(), len(seen)) == ("derived of base", 2)


def test_a_function_in_c_warns_at_the_line_that_called_it() -> None:
    seen: list[Any] = []
    owner = SimpleNamespace(warn=warnings.warn)
    undo = UndoStack()
    hook(undo, owner, "warn", passing(seen))
    line = sys._getframe().f_lineno + 2
    with pytest.warns(UserWarning, match="mind") as caught:
        owner.warn("mind")
    undo()
    assert (caught[0].filename, caught[0].lineno, len(seen)) == (__file__, line, 1)
    assert owner.warn is warnings.warn


def test_undo_gives_back_what_was_there_and_deletes_what_was_not() -> None:
    class Owner:
        kept = 1

    undo = UndoStack()
    undo.set(Owner, "kept", 2)
    undo.set(Owner, "kept", 3)
    undo.set(Owner, "new", 4)
    assert (Owner.kept, vars(Owner)["new"]) == (3, 4)
    del Owner.new  # type: ignore[attr-defined]
    undo()
    undo()
    assert Owner.kept == 1
    assert "new" not in vars(Owner)


def test_a_missing_attribute_is_an_error_at_once() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        hook(UndoStack(), SimpleNamespace(), "nothing", passing([]))


def test_the_names_of_a_lazy_module_are_seen_without_loading_it() -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    module = Lazy("lazy")
    assert namespace_of(module)["__name__"] == "lazy"
    assert namespace_of(object()) == {}
