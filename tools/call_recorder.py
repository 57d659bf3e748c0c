"""Records the calls of the package's functions in each process of one interpreter.

`count_folder_changes` puts this file into an environment made for the purpose, in which each Python
process imports it at its start (by a ``.pth`` file) and finds what to do in ``calls/settings.json``
of the environment. Records go to one file a process there, a line a call: the number of the call,
the number of the package's call that it was made in (0: none), the file below the package, the name
of the function. Files are opened for each line, since processes here close
what they have not opened, and end without notice. Only standard library.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from types import FrameType
from typing import Any

_CALLS = os.path.join(sys.prefix, "calls")
_FUNCTION = 0x01  # CO_OPTIMIZED: set for functions, not for the bodies of modules and classes


def begin(name: str) -> None:
    """Note that a stretch begins here, in this process."""
    _write(f'["begin", {json.dumps(name)}]\n')


def end(name: str) -> None:
    """Note that the stretch is over."""
    _write(f'["end", {json.dumps(name)}]\n')


def _write(line: str) -> None:
    with open(os.path.join(_CALLS, f"{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
        file.write(line)


class _Recorder:
    """The package's frames on the stack of this process's first thread, and a count of calls."""

    def __init__(self, package: str) -> None:
        self._package = package.rstrip("/") + "/"
        self._stack: list[tuple[FrameType, int]] = []
        self._count = 0
        self._importing: list[FrameType] = []

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call, or take a frame that returns from the stack."""
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._package):
            return
        if event == "return":
            if self._importing and self._importing[-1] is frame:
                self._importing.pop()
            elif self._stack and self._stack[-1][0] is frame:
                self._stack.pop()
        elif not code.co_flags & _FUNCTION:
            self._importing.append(frame)  # code that runs at import is no part of the way
        elif not self._importing:
            self._count += 1
            caller = self._stack[-1][1] if self._stack else 0
            self._stack.append((frame, self._count))
            if not code.co_name.startswith("<"):
                file = code.co_filename.removeprefix(self._package)
                name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualname
                _write(json.dumps([self._count, caller, file, name]) + "\n")
            else:  # a comprehension or a lambda is a part of the function around it
                self._stack[-1] = (frame, caller)


def _start() -> None:
    try:
        with open(os.path.join(_CALLS, "settings.json"), encoding="utf-8") as file:
            package = json.load(file)["package"]
    except FileNotFoundError:
        return
    if threading.current_thread() is threading.main_thread():
        sys.setprofile(_Recorder(package).profile)


_start()
