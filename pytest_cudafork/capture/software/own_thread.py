"""Names of other modules and classes that stand for something else in one thread, for a while.

What other threads call does what it always does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals


def replace_here(undo: UndoStack, owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Have calls of ``owner.name`` by this thread done by *instead*, until it is undone.

    *instead* is given the original before the arguments. A class stays one that ``isinstance``
    takes.
    """
    original, thread = getattr(owner, name), threading.get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            return instead(original, *args, **kwargs)
        return original(*args, **kwargs)

    if not isinstance(original, type):
        undo.set(owner, name, functools.wraps(original)(call))
        return

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    undo.set(owner, name, Meta(original.__name__, (), {}))
