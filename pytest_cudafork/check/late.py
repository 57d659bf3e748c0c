"""Errors at the very end: in the hooks that other plugins and conftests have for a session's end.

They come after the check's own end, so the session is judged again behind them, and once more when
all is over: what no summary has told by then is told on stderr.
"""

from __future__ import annotations

import sys

import pytest

from pytest_cudafork.check.hooks import CheckHooks
from pytest_cudafork.compat.unpatched import os


class LateErrors:
    """The plugin object; ``close`` belongs to the end of the configuration, before the watch's."""

    def __init__(self, check: CheckHooks) -> None:
        self._check = check
        self._pid = os.getpid()
        self._session: pytest.Session | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge the session behind all hooks that are no wrappers."""
        self._session = session
        self._check.judge(session)

    def close(self) -> None:
        """Tell what came after the summary; pytest returns the status only then."""
        if self._pid != os.getpid():
            return
        if self._session is not None:
            self._check.judge(self._session)
        for text in self._check.left_to_tell():
            sys.stderr.write(f"\nERROR: too late to fail a test:\n{text}\n")
