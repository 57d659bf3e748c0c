"""Puts a hook into a function of another package, and takes it out again, unnoticed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.observe.base.stacks import MOST_FRAMES, StackItem, item_of
from pytest_cudafork.observe.base.undo import UndoStack

Proceed = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Caller = FrameType | None
Around = Callable[[Proceed, Args, Kwargs, Caller], Any]
"""``around(proceed, args, kwargs, caller)``: what runs in place of a hooked function."""

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NAMESPACE: Any = vars(ModuleType)["__dict__"]
_MARK = "pytest-cudafork: the hook goes here"
_CO_VARARGS, _CO_VARKEYWORDS, _CO_GENERATOR = 0x04, 0x08, 0x20
"""Of a code object's flags, as ``inspect`` has them."""


def hook(undo: UndoStack, owner: Any, name: str, around: Around) -> None:
    """Let *around* run in place of ``owner.name``, which must exist.

    A Python function keeps its identity: only its code is exchanged, so names that others
    imported earlier, caches around it and dynamo's tables are hooked as well, and its signature,
    source and place in a pickle stay as they are. Anything else is wrapped in place.

    Raises:
        AttributeError: there is no such attribute.

    """
    target = standing(owner, name)
    target = getattr(target, "__func__", target)  # of a staticmethod, as __new__ is
    if isinstance(target, FunctionType):
        _exchange_code(undo, target, around)
    else:
        undo.set(owner, name, _wrapper(getattr(owner, name), around))


def standing(owner: Any, name: str) -> Any:
    """Return what stands at ``owner.name``, which a hook is put into.

    Statically, to see __new__ as it stands in the class; a module may answer in __getattr__ only.
    ``inspect`` is imported for others than modules alone: every watched program begins here.

    Raises:
        AttributeError: there is no such attribute.

    """
    if isinstance(owner, ModuleType):
        return vars(owner).get(name) or getattr(owner, name)
    from pytest_cudafork.compat.unpatched import inspect

    return inspect.getattr_static(owner, name, None) or getattr(owner, name)


def namespace_of(module: object) -> dict[str, Any]:
    """Return the names of what stands in ``sys.modules``; none for what is no module.

    Past the module's own class: that of a lazy module loads it on any access.
    """
    is_module = issubclass(type(module), ModuleType)
    names: dict[str, Any] = _NAMESPACE.__get__(module) if is_module else {}
    return names


def calling_stack(frame: FrameType | None) -> list[StackItem]:
    """Return the stack from *frame* outwards in the ledger's form, without this package's frames.

    Frames of the import machinery stay: they tell a module body from a script.
    """
    stack: list[StackItem] = []
    while frame is not None and len(stack) < MOST_FRAMES:
        code = frame.f_code
        if _is_bridge(code):
            # Around a bridge stands the exchanged code, in its original's file and name.
            frame = frame.f_back
        elif not _is_own(code.co_filename):
            stack.append(item_of(frame))
        frame = frame.f_back if frame is not None else None
    return stack


def _is_own(filename: str) -> bool:
    return filename.startswith(_HERE)


def _is_bridge(code: CodeType) -> bool:
    return code.co_name in ("bridge", "yielding_bridge") and code.co_filename == __file__


def _exchange_code(undo: UndoStack, function: FunctionType, around: Around) -> None:
    """Give *function* code that calls *around* with the original."""
    code = function.__code__
    original = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__qualname__ = function.__qualname__

    def bridge(args: Args, kwargs: Kwargs) -> Any:
        return around(original, args, kwargs, sys._getframe(1).f_back)

    def yielding_bridge(args: Args, kwargs: Kwargs) -> Any:
        return (yield from around(original, args, kwargs, sys._getframe(1).f_back))

    generator = bool(code.co_flags & _CO_GENERATOR)
    function.__code__ = _calling_code(function, yielding_bridge if generator else bridge)
    undo.add(lambda: setattr(function, "__code__", code))


def _calling_code(function: FunctionType, bridge: Callable[..., Any]) -> CodeType:
    """Make code with *function*'s parameters, place and free variables that calls *bridge*.

    The bridge travels as a constant, because the code runs with its function's globals, where
    nothing of ours belongs.
    """
    code = function.__code__
    names = code.co_varnames
    required = code.co_posonlyargcount
    positional = list(names[: code.co_argcount])
    keyword = list(names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    rest = code.co_argcount + code.co_kwonlyargcount
    args, kwargs = list(positional), [f"{name!r}: {name}" for name in keyword]
    parameters = [*positional[:required], *(["/"] if required else []), *positional[required:]]
    if code.co_flags & _CO_VARARGS:
        parameters.append("*" + names[rest])
        args.append("*" + names[rest])
        rest += 1
    elif keyword:
        parameters.append("*")
    parameters += keyword
    if code.co_flags & _CO_VARKEYWORDS:
        parameters.append("**" + names[rest])
        kwargs.append("**" + names[rest])
    free = code.co_freevars
    given = "".join(f"{arg}, " for arg in args)
    call = f"_cudafork_bridge(({given}), {{{', '.join(kwargs)}}})"
    if code.co_flags & _CO_GENERATOR:
        call = f"(yield from {call})"
    # One line: wherever a traceback meets this code, it shows the first line of the function.
    body = [*free, f"_cudafork_bridge = {_MARK!r}", f"return {call}"]
    lines = [
        "def outer():",
        *(f"  {name} = None" for name in free),
        f"  def inner({', '.join(parameters)}): {'; '.join(body)}",
        "  return inner",
    ]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)
    made: CodeType = namespace["outer"]().__code__
    changes: dict[str, Any] = {
        "co_consts": tuple(bridge if const == _MARK else const for const in made.co_consts),
        "co_filename": code.co_filename,
        "co_firstlineno": code.co_firstlineno,
        "co_name": code.co_name,
    }
    if sys.version_info >= (3, 11):
        changes["co_qualname"] = code.co_qualname
        changes["co_linetable"] = _one_line(len(made.co_code) // 2)
    return made.replace(**changes)


def _one_line(units: int) -> bytes:
    """Return the table of places of code that lies in its first line, without columns.

    Those of the made code would underline some other text of that line. The form is that of
    CPython's ``InternalDocs/code_objects.md``: eight units of code an entry at most, of the kind
    13, which has no columns, and a line delta of 0.
    """
    sizes = [*[8] * (units // 8), *([units % 8] if units % 8 else [])]
    return b"".join(bytes([0x80 | 13 << 3 | size - 1, 0]) for size in sizes)


def _wrapper(target: Callable[..., Any], around: Around) -> Callable[..., Any]:
    """Wrap a callable that has no Python code."""

    @functools.wraps(target, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        caller = sys._getframe(1)

        def proceed(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return _call_as(caller, target, args, kwargs)

        return around(proceed, args, kwargs, caller)

    return wrapper


def _call_as(caller: FrameType, target: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """Call *target* from a frame in *caller*'s place.

    A function in C attributes its warnings to the innermost Python frame: that must stay the
    user's line (and the user's module, for filters and the once-per-line registry).
    """
    code = _call.__code__.replace(
        co_filename=caller.f_code.co_filename,
        co_firstlineno=caller.f_lineno or 0,
        co_name=caller.f_code.co_name,
    )
    return FunctionType(code, caller.f_globals)(target, args, kwargs)


# On one line, so that the line the frame reports is its first.
def _call(target: Any, args: Any, kwargs: Any) -> Any: return target(*args, **kwargs)  # fmt: skip
