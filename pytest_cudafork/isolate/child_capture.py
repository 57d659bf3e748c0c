"""Owns how a child that was forked with pytest's capture gets one of its own.

Runs in the child and in the process it is forked from. It does not know what is captured.
"""

from __future__ import annotations

import os
from typing import Any

import pytest


class ForkedCapture:
    """The capture of a process that captures for nobody: each of its children does for itself.

    The files of the capture would be shared by all children, and its way back to the terminal leads
    to where this process writes. So a child puts files of its own and the parent's output under the
    same descriptors, which is much cheaper than to stop capturing and start again.
    """

    def __init__(self, config: pytest.Config, stdout: int, stderr: int) -> None:
        """Take the descriptors that are the standard output and error of the parent."""
        self._manager: Any = config.pluginmanager.get_plugin("capturemanager")
        self._outputs = (stdout, stderr)
        capture = getattr(self._manager, "_global_capturing", None)
        self._parts = [getattr(capture, name, None) for name in ("out", "err")]
        self._files = [_file_of(part) for part in self._parts]
        self._saved = [getattr(part, "targetfd_save", -1) for part in self._parts]

    def renew(self) -> None:
        """Let this child write to the parent's output, and capture into files of its own."""
        for number, output in enumerate(self._outputs):
            os.dup2(output, number + 1)
            saved, file = self._saved[number], self._files[number]
            if saved >= 0:
                os.dup2(output, saved, inheritable=False)
            if file >= 0:
                own = os.memfd_create("pytest-cudafork-capture", os.MFD_CLOEXEC)
                os.dup2(own, file, inheritable=False)
                os.close(own)
            os.close(output)


def _file_of(part: Any) -> int:
    """Return the descriptor that a part captures into; -1 if it captures into memory, or not."""
    try:
        return int(part.tmpfile.fileno())
    except (AttributeError, OSError, ValueError):
        return -1
