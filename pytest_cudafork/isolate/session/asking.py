"""Asks other plugins how tests are to be isolated, by their hook ``pytest_cudafork_isolate``."""

from __future__ import annotations

from os import getpid

import pytest

from pytest_cudafork.hooks.calling import call_each, has_hook
from pytest_cudafork.settings import AUTO, METHODS
from pytest_cudafork.settings.markers import marks_of, put_marks

HOOK = "pytest_cudafork_isolate"
_ANSWERS = (*METHODS, AUTO)


class AskPlugins:
    """The plugin object; it is not registered in the process of an isolated test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pid = getpid()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Ask for each test, before anything starts what isolation needs."""
        if self._pid != getpid() or not has_hook(self._config, HOOK):
            return
        for item in session.items:
            marks = marks_of(item)
            if not (marks.isolated or marks.spawn_only or marks.left_alone or marks.complaint):
                self._ask(item)

    def _ask(self, item: pytest.Item) -> None:
        """Ask until one answers; what is no answer fails the test in its set-up."""
        hooks = item.ihook
        for answer, failure in call_each(self._config, HOOK, {"item": item}, hooks=hooks):
            if failure is not None:
                put_marks(item, marks_of(item)._replace(complaint=failure.line()))
                return
            if answer is None:
                continue
            if not isinstance(answer, str) or answer not in _ANSWERS:
                words = f"{HOOK} returned {answer!r}: use one of {', '.join(_ANSWERS)}, or None"
                put_marks(item, marks_of(item)._replace(complaint=words))
                return
            put_marks(item, marks_of(item)._replace(isolated=True, method=answer))
            return
