"""Owns how a child that was forked with pytest's capture gets one of its own.

Runs in the child and in the process it is forked from. It does not know what is captured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals


class ForkedCapture:
    """The capture of a process that captures for nobody: each of its children does for itself.

    The files of the capture would be shared by all children, and its way back to the terminal leads
    to where this process writes. So a child puts files of its own and the parent's output under the
    same descriptors, which is much cheaper than to stop capturing and start again.
    """

    def __init__(self, config: pytest.Config, stdout: int, stderr: int) -> None:
        """Take the descriptors that are the standard output and error of the parent."""
        self._outputs = (stdout, stderr)
        parts = pytest_internals.captured_streams(config) or (None, None)
        self._files = capture_files(config)
        self._saved = [getattr(part, "targetfd_save", -1) for part in parts]

    def renew(self) -> None:
        """Let this child write to the parent's output, and capture into files of its own."""
        for number, output in enumerate(self._outputs):
            os.dup2(output, number + 1)
            saved = self._saved[number]
            if saved >= 0:
                os.dup2(output, saved, inheritable=False)
            os.close(output)
        renew_files(self._files)


def capture_files(config: pytest.Config) -> list[int]:
    """Return the descriptors of the files that pytest captures into; -1 where there is none."""
    return [_file_of(part) for part in pytest_internals.captured_streams(config) or (None, None)]


def renew_files(files: Sequence[int]) -> None:
    """Put files of this process's own under the descriptors that were another's, too.

    While pytest captures, 1 and 2 lead to the same files, so they are led to the new ones.
    """
    for number, file in enumerate(files):
        if file < 0:
            continue
        captures = os.fstat(number + 1)[:2] == os.fstat(file)[:2]
        own = os.memfd_create("pytest-cudafork-capture", os.MFD_CLOEXEC)
        os.dup2(own, file, inheritable=False)
        if captures:
            os.dup2(own, number + 1)
        os.close(own)


def _file_of(part: Any) -> int:
    """Return the descriptor that a part captures into; -1 if it captures into memory, or not."""
    try:
        return int(part.tmpfile.fileno())
    except (AttributeError, OSError, ValueError):
        return -1
