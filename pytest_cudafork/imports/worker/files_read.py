"""Which files an import executes or reads, and which folders it lists.

Python tells its audit hooks of each file that it opens; a hook stays for as long as the process
lives, and its forks have it, too. Of the folders where Python looks for modules, what can be
imported from there is told: a module that was not found may be there the next time. What C code
opens by itself, or another program reads, is not told. Files that are written are not read, and
what lies where libraries are installed is known by the versions of these.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.imports.values.installed import is_installed

_IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
_CACHE = f"{os.sep}__pycache__{os.sep}"
_LISTINGS = ("os.listdir", "os.scandir")
_NEW = os.O_CREAT | os.O_EXCL
_MODULES = os.sep * 2
"""Ends the path of a folder where Python has looked for modules."""


class FilesRead:
    """Hears of every file that this process opens from now on."""

    def __init__(self) -> None:
        self._before: dict[str, None] = {}
        self._now: dict[str, None] = {}

    def begin(self) -> FilesRead:
        """Listen; this cannot be undone, so it is for processes of the audit alone."""
        sys.addaudithook(self.hear)
        return self

    def mark(self) -> None:
        """Say that what comes now belongs to one import, and what came before to all."""
        self._before.update(self._now)
        self._now = {}

    def found(self) -> list[list[str]]:
        """Return the files since the mark, and those before it."""
        return [list(self._now), list(self._before)]

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Take note of an event; the signature is that of an audit hook, which must never raise."""
        try:
            if event == "open":
                self._opened(*args)
            elif event == "import":
                self._add(args[1])
            elif event == "ctypes.dlopen" and os.sep in os.fsdecode(args[0]):
                self._add(args[0])  # a name without a folder is the loader's business
            elif event == "exec" and os.path.isabs(args[0].co_filename):
                self._add(args[0].co_filename)  # what was compiled may lie anywhere
            elif event in _LISTINGS:
                looks = sys._getframe(1).f_code.co_filename == _IMPORT_SYSTEM
                self._add(args[0] or os.curdir, _MODULES if looks else os.sep)
        except Exception:
            return  # a path that is none; to raise would make the user's call fail

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        access = flags if isinstance(flags, int) else 0
        is_new = access & os.O_TRUNC or access & _NEW == _NEW  # there is nothing to read in it
        if access & os.O_ACCMODE != os.O_WRONLY and not is_new:
            self._add(path)

    def _add(self, path: Any, end: str = "") -> None:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str) or not path:
            return  # a descriptor
        path = os.path.abspath(path)
        folder, cached, name = path.rpartition(_CACHE)
        if cached:
            if not name.endswith(".pyc"):
                return
            path = os.path.join(folder, f"{name.partition('.')[0]}.py")
        elif sys.pycache_prefix and path.startswith(sys.pycache_prefix):
            return  # its source is told when it is executed
        if not is_installed(path + end):
            self._now[path + end] = None
