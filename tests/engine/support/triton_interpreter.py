"""Has Triton's interpreter put its own functions into ``triton.language`` once a launch.

It does so when a kernel is launched, and once more for each function that the kernel calls, again
and again: a third of the time that an interpreted kernel takes. Within a launch nothing takes them
out again, so that the second time changes nothing.
"""

from __future__ import annotations

import inspect
from typing import Any


class PatchedOnce:
    """Stands for ``_patch_lang`` of ``triton.runtime.interpreter``."""

    def __init__(self, interpreter: Any) -> None:
        self._original = interpreter._patch_lang
        self._nothing = interpreter._LangPatchScope
        self._languages = (interpreter.tl, interpreter.tl.core)
        self._patched: set[str] = set()

    def __call__(self, function: Any) -> Any:
        """Patch what a function calls ``triton.language``; returns what undoes it."""
        found = {
            value.__name__
            for value in function.__globals__.values()
            if inspect.ismodule(value) and value in self._languages
        }
        if found and found <= self._patched:
            return self._nothing()
        scope = self._original(function)
        undo = scope.restore

        def restore() -> None:
            self._patched.clear()
            undo()

        scope.restore = restore
        self._patched |= found
        return scope


def patch_once() -> None:
    """Do so in this process, if its release of Triton undoes what a launch has patched."""
    from triton.runtime import interpreter

    if hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_lang = PatchedOnce(interpreter)
