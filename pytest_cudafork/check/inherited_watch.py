"""Owns the inherited watch: what an exec'd Python process of a watched session does at its start.

It runs in that process, before any of the user's code, and imports nothing of pytest.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys

from pytest_cudafork.check.watch import Watch, inherited_settings
from pytest_cudafork.settings import environment


@functools.cache
def inherited_watch() -> Watch | None:
    """Return the watch this process inherited; None when it inherited none."""
    settings = inherited_settings()
    return Watch(settings, environment.value(environment.OWNER)) if settings is not None else None


def begin_inherited() -> None:
    """Begin the inherited watch; a failure is told on stderr and the process goes on unwatched."""
    try:
        watch = inherited_watch()
        if watch is None:
            return
        watch.begin()
        watch.observer.note_process()
    except Exception as error:
        # The process may have been started without a stderr, or with a broken one.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(f"pytest-cudafork: process {os.getpid()} is not watched: {error}\n")
