"""Sees what ``multiprocessing`` starts in this process, by which method, and who chose that.

``multiprocessing`` is not imported for it: it is followed from the moment at which the program
imports it. What a program starts past it (``os.fork``, ``subprocess``) is for others to see.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.observe.base.after_import import after_import
from pytest_cudafork.observe.base.hooking import Args, Caller, Kwargs, Proceed, calling_stack, hook
from pytest_cudafork.observe.base.stacks import StackItem
from pytest_cudafork.observe.base.undo import UndoStack

Note = Callable[[str, "list[StackItem]"], object]
"""Takes the name of a start method and the stack of the line that uses or sets it."""


def follow(started: Note, chosen: Note) -> Callable[[], None]:
    """Tell of each process that ``multiprocessing`` starts from now on; the result ends that.

    Args:
        started: Called before a process is started, with the method by which it will be.
        chosen: Called when the program has set the method of its default context; with "" where it
            takes its choice back.

    """
    undo = UndoStack()

    def follow_starts(module: ModuleType) -> None:
        def around(proceed: Proceed, args: Args, kwargs: Kwargs, caller: Caller) -> Any:
            process = args[0] if args else None
            with contextlib.suppress(Exception):  # a class of the program's own, made otherwise
                started(standard_library.start_method_of(process), calling_stack(caller))
            return proceed(*args, **kwargs)

        hook(undo, module.BaseProcess, "start", around)

    def follow_choice(module: ModuleType) -> None:
        def around(proceed: Proceed, args: Args, kwargs: Kwargs, caller: Caller) -> Any:
            result = proceed(*args, **kwargs)
            method = args[1] if len(args) > 1 else kwargs.get("method")
            chosen(method if isinstance(method, str) else "", calling_stack(caller))
            return result

        hook(undo, module.DefaultContext, "set_start_method", around)

    undo.add(after_import("multiprocessing.process", follow_starts))
    undo.add(after_import("multiprocessing.context", follow_choice))
    return undo
