"""Where a raised exception ended: the statement that caught it, and whether that names its class.

An exception carries its traceback, whose outermost entry is the frame that the exception reached
last. So the statement that caught it is around that frame's line. It is looked up in the syntax
tree, and the names in it are looked up where that code would find them; no code is run for it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple

from pytest_cudafork.compat.unpatched import ast, inspect
from pytest_cudafork.observe.base.stacks import frames_of_threads, outward
from pytest_cudafork.observe.story.scopes import enclosing_statements, tree_of
from pytest_cudafork.observe.story.source import source_line
from pytest_cudafork.observe.story.stories import ENDS

_STACK_METHODS = {"enter_context", "enter_async_context", "push", "push_async_exit"}
"""Methods of ``contextlib.ExitStack`` and ``AsyncExitStack`` that take a manager."""


class Caught(NamedTuple):
    """Where an exception ended.

    ``by_name`` says that the code there names the exception's class, or a subclass of it. ``line``
    is 0 where nothing in Python caught it: a thread died of it, or native code dropped it.
    """

    filename: str
    line: int
    function: str
    by_name: bool

    @property
    def ended_process(self) -> bool:
        """Whether the exception went past the first line that ran, of a script or of a module."""
        return not self.line and self.function in ENDS

    @property
    def source(self) -> str:
        """The text of the line; "" where there is none."""
        return source_line(self.filename, self.line) if self.line else ""


class _Match(enum.Enum):
    """How an expression in an ``except`` or ``with`` is about a class of exceptions."""

    NO = "names something else"
    BASE = "names a base class, so that it catches the class without naming it"
    NAME = "names the class or a subclass"


def caught_at(traceback: TracebackType, kind: type[BaseException]) -> Caught:
    """Return where an exception ended that is over: the last place in which it was caught.

    Args:
        traceback: The exception's, outermost frame first, as in ``__traceback__``.
        kind: The class that a statement has to name.

    """
    frame = traceback.tb_frame
    code = frame.f_code
    best: tuple[int, bool] | None = None
    # A lambda or a comprehension catches nothing, and stands on a line of the code around it.
    nameless = code.co_name.startswith("<") and code.co_name != "<module>"
    tree = None if nameless else tree_of(code.co_filename)
    if tree is not None:
        best = _ended_by(enclosing_statements(tree, traceback.tb_lineno), frame, kind)
    line, by_name = best or (0, False)
    return Caught(code.co_filename, line, getattr(code, "co_qualname", code.co_name), by_name)


def may_look() -> bool:
    """Whether ``caught_at`` may be called here: not where a finalizer has interrupted a parse.

    In Python 3.11 a parse within a parse makes the outer one fail with a ``SystemError``. The outer
    one may be another thread's, which a finalizer has interrupted as well.
    """
    parse = ast.parse.__code__
    stacks = map(outward, frames_of_threads().values())
    return all(frame.f_code is not parse for stack in stacks for frame in stack)


def _ended_by(
    around: Iterable[tuple[ast.stmt, str]], frame: FrameType, kind: type[BaseException]
) -> tuple[int, bool] | None:
    """Choose among the statements around the line, innermost first; None if none of them catches.

    A statement that may have let the exception pass is chosen only if none further out is sure.
    """
    possible: list[tuple[int, bool]] = []
    for node, part in around:
        if isinstance(node, ast.With | ast.AsyncWith):
            # An item's expression is under the items before it, and the line is all that is known.
            items = node.items if part == "body" else node.items[:-1]
            matches = [_match_manager(node, item, frame, kind) for item in reversed(items)]
            sure = next((match for match in matches if match is not _Match.NO), None)
            if sure is not None:
                return node.lineno, sure is _Match.NAME
            possible.extend((node.lineno, False) for _ in items[:1])
        elif part == "body" and hasattr(node, "handlers"):
            for handler in node.handlers:
                match = _Match.BASE if handler.type is None else _match(handler.type, frame, kind)
                if match is _Match.NO:
                    continue
                found = handler.lineno, match is _Match.NAME
                if not _raises_again(handler):
                    return found
                possible.insert(0, found)
                break
    return possible[0] if possible else None


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether a handler may let go on what it has caught."""
    return any(
        node.exc is None or (isinstance(node.exc, ast.Name) and node.exc.id == handler.name)
        for statement in handler.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Raise)
    )


def _match(node: ast.expr, frame: FrameType, kind: type[BaseException]) -> _Match:
    """How an expression is about a class: of ``except``, or what a ``with`` calls or holds."""
    return _best(_about(value, kind) for value in _values(node, frame))


def _match_manager(
    node: ast.With | ast.AsyncWith, item: ast.withitem, frame: FrameType, kind: type[BaseException]
) -> _Match:
    """How an item of a ``with`` is about a class; of a stack of managers, what was put on it."""
    managers = [item.context_expr]
    if isinstance(item.optional_vars, ast.Name):
        managers += _put_on_stack(node, item.optional_vars.id)
    while any(isinstance(each, ast.IfExp) for each in managers):  # raises(...) if ... else ...
        managers = [
            part
            for each in managers
            for part in ([each.body, each.orelse] if isinstance(each, ast.IfExp) else [each])
        ]
    return _best(_match(each, frame, kind) for each in managers)


def _put_on_stack(node: ast.With | ast.AsyncWith, name: str) -> Iterator[ast.expr]:
    """What the body of a ``with`` puts on the ``ExitStack`` of that name."""
    for statement in node.body:
        for call in ast.walk(statement):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and isinstance(call.func.value, ast.Name)
                and call.func.value.id == name
                and call.func.attr in _STACK_METHODS
            ):
                yield from call.args[:1]


def _best(matches: Iterable[_Match]) -> _Match:
    found = set(matches)
    return next((match for match in (_Match.NAME, _Match.BASE) if match in found), _Match.NO)


def _values(node: ast.expr, frame: FrameType) -> Iterator[object]:
    """What the names in an expression stand for; of a call, those in its arguments.

    ``pytest.raises``, ``contextlib.suppress`` and ``assertRaises`` are told what they catch by
    arguments, and so are those that others have written.
    """
    if isinstance(node, ast.Call):
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _values(argument, frame)
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from _values(element, frame)
    elif isinstance(node, ast.Starred | ast.NamedExpr):
        yield from _values(node.value, frame)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield _value(node, frame)


def _value(node: ast.expr, frame: FrameType) -> object:
    """What a dotted name stands for, without running code of the objects on the way."""
    if isinstance(node, ast.Name):
        code = frame.f_code
        local = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        is_body = not code.co_flags & inspect.CO_OPTIMIZED
        # A function's variables are copied for this, so only where they are needed.
        if (is_body or node.id in local) and node.id in frame.f_locals:
            return frame.f_locals[node.id]
        return frame.f_globals.get(node.id, frame.f_builtins.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if isinstance(owner, ModuleType):
            return getattr(owner, node.attr, None)
        return inspect.getattr_static(owner, node.attr, None)
    return None


def _about(value: object, kind: type[BaseException]) -> _Match:
    """How an object is about a class: a class, a tuple of them, or what holds one of these."""
    if isinstance(value, type):
        return _about_class(value, kind)
    if isinstance(value, tuple | list):
        return _best(_about_class(each, kind) for each in value if isinstance(each, type))
    held: list[Any] = []
    for each in getattr(value, "__dict__", {}).values():
        held.extend(each if isinstance(each, tuple | list) else [each])
    return _best(_about_class(each, kind) for each in held if isinstance(each, type))


def _about_class(found: type, kind: type[BaseException]) -> _Match:
    if issubclass(found, kind):
        return _Match.NAME
    if issubclass(kind, found) and issubclass(found, BaseException):
        return _Match.BASE
    return _Match.NO
