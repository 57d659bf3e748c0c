"""Owns what a test leaves for the time after a crash: its output so far, and who it is.

Runs in the child and in the parent; it does not know why the output is wanted.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_cudafork.isolate import child


def identity(item: pytest.Item) -> tuple[str, ...]:
    """Return what names a test in any session over the same files: its file and the names below.

    The node id will not do: it depends on the directories given on the command line where the file
    lies outside the root directory, and plugins rewrite it.
    """
    names = [
        node.name
        for node in item.listchain()
        if not isinstance(node, pytest.Session | pytest.File) and not _is_directory(node)
    ]
    return (str(item.path), *names)


def _is_directory(node: Any) -> bool:
    directory = getattr(pytest, "Directory", None)  # pytest >= 8
    package = getattr(pytest, "Package", None)
    return isinstance(node, tuple(kind for kind in (directory, package) if kind is not None))


def share_capture(config: pytest.Config, channel: child.Channel) -> None:
    """Give the parent the files that hold this process's captured output, for after a crash.

    pytest empties them at the end of each phase, so they hold the output of the phase that crashed.
    With ``--capture=sys`` there are none, so the text is written to memory files as well.
    """
    manager = config.pluginmanager.get_plugin("capturemanager")
    capture = getattr(manager, "_global_capturing", None)
    if capture is None:
        return
    fds = [_file_of(part) for part in (capture.out, capture.err)]
    if all(fd >= 0 for fd in fds):
        channel.send_with_fds("capture", fds)


def _file_of(part: Any) -> int:
    """Return the descriptor of the file behind one captured stream, or -1."""
    from _pytest.capture import CaptureIO

    file = getattr(part, "tmpfile", None)
    if type(file) is CaptureIO:
        part.tmpfile = file = _mirrored(CaptureIO)
        fd: int = file.mirror
        return fd
    try:
        return -1 if file is None else int(file.fileno())
    except (OSError, ValueError, AttributeError):
        return -1


def _mirrored(base: type) -> Any:
    """Return an in-memory text stream that also writes to a memory file, ``mirror``."""

    class Mirrored(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mirror = os.memfd_create("pytest-cudafork-output", os.MFD_CLOEXEC)

        def write(self, text: str) -> int:
            os.write(self.mirror, text.encode("utf-8", "backslashreplace"))
            written: int = super().write(text)
            return written

        def truncate(self, size: int | None = None) -> int:
            os.ftruncate(self.mirror, 0)
            os.lseek(self.mirror, 0, os.SEEK_SET)
            kept: int = super().truncate(size)
            return kept

    return Mirrored()
