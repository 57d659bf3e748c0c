"""Owns which signals a process of the audit does not hear: some modules send them to their parent.

It does not know who sends them.
"""

from __future__ import annotations

import signal
from typing import Any

from pytest_cudafork.imports.worker.supervisor import UNHEARD


class Deafness:
    """Ignores the signals from ``begin`` to ``end``; a process that is forked inherits it."""

    def __init__(self) -> None:
        self._former: dict[signal.Signals, Any] = {}

    def begin(self) -> None:
        """Ignore them."""
        for each in UNHEARD:
            former = signal.signal(each, signal.SIG_IGN)
            self._former[each] = signal.SIG_DFL if former is None else former

    def end(self) -> None:
        """Let them have the meaning again that they had."""
        for each, former in self._former.items():
            signal.signal(each, former)
