"""Owns which line of the user's code is at work, found by walking the Python frames.

It does not know what the line is wanted for. It is asked once for each recorded operation, so what
it learns about a file is kept.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path

__all__ = ["UserLines"]

_LIBRARIES = ("torch", "triton", "numpy")
_PACKAGE = Path(__file__).resolve().parents[2]


class UserLines:
    """Finds the innermost line outside torch, triton, numpy, the standard library and this package.

    Calling it gives ``file:line``, or "" where no frame is the user's.
    """

    def __init__(self) -> None:
        self._skipped: dict[str, bool] = {}
        self._roots = tuple(f"{root}{os.sep}" for root in _roots())
        self._stdlib = tuple(
            f"{path}{os.sep}"
            for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        )

    def __call__(self) -> str:
        """The line at work in the calling thread."""
        place = self.place()
        return f"{place[0]}:{place[1]}" if place else ""

    def place(self) -> tuple[str, int] | None:
        """The same as a file and a line number."""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not self._skips(file):
                return file, frame.f_lineno or 0
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def in_traceback(self, error: BaseException) -> str:
        """The innermost line in the traceback of an exception, as ``file:line`` or ""."""
        best = ""
        for frame, line in traceback.walk_tb(error.__traceback__):
            if not self._skips(frame.f_code.co_filename):
                best = f"{frame.f_code.co_filename}:{line}"
        return best

    def _skips(self, file: str) -> bool:
        skip = self._skipped.get(file)
        if skip is None:
            skip = self._skipped[file] = self._skip(file)
        return skip

    def _skip(self, file: str) -> bool:
        if file.startswith(("<frozen ", "<eval_with_key>", "<__array_function__")):
            return True
        if file.startswith(self._roots):
            return True
        return file.startswith(self._stdlib) and not any(
            part in file for part in ("site-packages", "dist-packages")
        )


def _roots() -> list[str]:
    found = [str(_PACKAGE)]
    for name in _LIBRARIES:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None and module is None:
            spec = importlib.util.find_spec(name)
            file = spec.origin if spec else None
        if file:
            found.append(os.path.dirname(file))  # as code objects spell it
    return found
