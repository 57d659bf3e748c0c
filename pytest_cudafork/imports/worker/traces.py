"""What an import reads of the environment, and which descriptors and native threads it leaves.

All of it matters where a process that has imported a module is forked: a variable that was read is
not read again in the children, descriptors are shared with them, and threads are missing there.
Reads are seen in ``os.environ`` and ``os.environb``, and so in ``os.getenv``; what C code reads by
itself is not.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from pytest_cudafork.imports.values.left_behind import WHOLE, EnvironmentRead, Traces
from pytest_cudafork.imports.worker.threads import place_of
from pytest_cudafork.observe.base.stacks import outward
from pytest_cudafork.observe.story.packages import package_of

_INODE = re.compile(r":\[\d+\]$")
_MAPPING_FILES = frozenset(
    method.__code__.co_filename for method in (type(os.environ).copy, Mapping.get, Mapping.items)
)
"""Where the methods of a mapping are that call others of it."""

_Moment = tuple[CodeType, int, int]
"""A place in the course of a program: code, frame and instruction."""


class TraceWatch:
    """Looks before and after an import; made before it."""

    def __init__(self) -> None:
        self._reads = _EnvironmentReads()
        self._descriptors = _open_descriptors()
        self._threads = set(_native_threads())
        self._look: Callable[[], dict[str, str]] = _open_descriptors
        self._look_at_threads: Callable[[], dict[int, str]] = _native_threads
        self._python_threads = threading.enumerate

    def begin(self) -> None:
        """Note from now on what is read."""
        self._reads.begin()

    def end(self) -> None:
        """Note no more."""
        self._reads.end()

    def found(self) -> dict[str, Any]:
        """Return ``Traces`` as plain data."""
        descriptors = self._look()
        new = [
            _shown(target)
            for fd, target in sorted(descriptors.items(), key=lambda pair: int(pair[0]))
            if self._descriptors.get(fd) != target
        ]
        known = {thread.native_id for thread in self._python_threads()} | self._threads
        native = [name for tid, name in self._look_at_threads().items() if tid not in known]
        return Traces(self._reads.all(), tuple(new), tuple(native)).to_plain()


class _EnvironmentReads:
    """Which variables are read, and by which line first."""

    def __init__(self) -> None:
        self._class: Any = type(os.environ)
        self._undo = contextlib.ExitStack()
        self._first: dict[str, EnvironmentRead] = {}
        self._copied: _Moment | None = None

    def begin(self) -> None:
        get, iterate = self._class.__getitem__, self._class.__iter__

        def noting_get(environ: Any, key: Any) -> Any:
            try:
                value = get(environ, key)
            except KeyError:
                self._note(key, sys._getframe(1), is_set=False)
                raise
            self._note(key, sys._getframe(1), is_set=True)
            return value

        def noting_iterate(environ: Any) -> Iterator[Any]:
            frame = _user_of(sys._getframe(1))
            if frame is not None:
                self._copied = _moment(frame)
                self._note(WHOLE, frame, is_set=True)
            found: Iterator[Any] = iterate(environ)
            return found

        self._undo.callback(setattr, self._class, "__getitem__", get)
        self._undo.callback(setattr, self._class, "__iter__", iterate)
        self._class.__getitem__, self._class.__iter__ = noting_get, noting_iterate

    def end(self) -> None:
        self._undo.close()

    def all(self) -> tuple[EnvironmentRead, ...]:
        return tuple(self._first.values())

    def _note(self, key: Any, frame: FrameType, *, is_set: bool) -> None:
        name = os.fsdecode(key) if isinstance(key, str | bytes) else ""
        if not name or name in self._first:
            return
        user = _user_of(frame)
        # A copy of the whole environment reads each variable, too: that was noted as such.
        if name != WHOLE and user is not None and _moment(user) == self._copied:
            return
        where = place_of(frame)
        if where and package_of(where.rpartition(":")[0]) != "<stdlib>":
            self._first[name] = EnvironmentRead(name, where, is_set)


def _user_of(frame: FrameType | None) -> FrameType | None:
    """Return the frame that uses a mapping, behind those of the mapping itself."""
    users = (one for one in outward(frame) if one.f_code.co_filename not in _MAPPING_FILES)
    return next(users, None)


def _moment(frame: FrameType) -> _Moment:
    return frame.f_code, id(frame), frame.f_lasti


def _open_descriptors() -> dict[str, str]:
    """Return what each descriptor of this process leads to, by its number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that the list was read from
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _native_threads() -> dict[int, str]:
    """Return the names of all threads of this process, Python's own included, by their numbers."""
    found = {}
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{name}/comm", "rb") as file:
            found[int(name)] = _shown(file.read().decode("utf-8", "replace").strip())
    return found


def _shown(text: str) -> str:
    """Return what a descriptor leads to in words that can be shown and compared."""
    short = _INODE.sub("", text).removeprefix("anon_inode:").strip("[]")
    return "".join(c if c.isprintable() else "?" for c in short)
