"""The host syncs that do not break a capture, as torch's own debug mode tells them.

Those that do break it fail at their line.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.lines import line_of, place

_TELLS = "called a synchronizing CUDA operation"
_WARN = 1


class Syncs:
    """Collects the lines that wait for the GPU."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Collect meanwhile; all other warnings go where they would have gone."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            warnings.filterwarnings("always", message=_TELLS)
            others = warnings.showwarning

            def show(
                message: Any, category: Any, filename: str, lineno: int, *more: Any, **named: Any
            ) -> None:
                if str(message).startswith(_TELLS):
                    where = line_of(sys._getframe(1)) or place(filename, lineno)
                    self._lines.setdefault(where)
                else:
                    others(message, category, filename, lineno, *more, **named)

            warnings.showwarning = show
            torch.cuda.set_sync_debug_mode(_WARN)
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(before)

    def findings(self) -> list[CaptureFinding]:
        """One finding for each line."""
        return [
            CaptureFinding(
                "host-sync",
                "the captured function waits for the GPU here",
                where=where,
                why="the wait is not part of the graph: what the host does after it happens once, "
                "at the capture, and never at a replay",
                todo="move it out of the captured function",
            )
            for where in self._lines
        ]
