"""A watch over one process, from its beginning to its end: observer and guard together.

The plugin begins a watch for its session. Every Python process that the session starts by exec
inherits it, by way of ``_startup/sitecustomize.py``, before any of the user's code runs; nothing
here needs pytest.
"""

from __future__ import annotations

import atexit
import functools
import sys
from typing import TYPE_CHECKING

from pytest_cudafork.check.guard import DEFAULT_ALLOW, Rules
from pytest_cudafork.check.guard import install as install_guard
from pytest_cudafork.compat import standard_library
from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.observe.handed_on import ROOT, STARTUP, WatchSettings
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.check.accepted import Acceptance
    from pytest_cudafork.check.refusal import Refusals

_REFUSING_LEVELS = frozenset({"fork", "touch"})


class Watch:
    """A watch over this process, and over all processes it forks, from ``begin`` to ``end``.

    Watches nest: while an inner one lasts (a pytest session run inside a test), the outer rests.
    """

    def __init__(self, settings: WatchSettings, owner: str) -> None:
        self.observer = Observer(settings, owner)
        self._undo = contextlib.ExitStack()

    # Both are made when they are asked for: most watched programs refuse nothing.
    @functools.cached_property
    def refusals(self) -> Refusals:
        """The errors of the forks that are refused here."""
        from pytest_cudafork.check.refusal import Refusals

        return Refusals(self.observer)

    @functools.cached_property
    def acceptance(self) -> Acceptance:
        """What the baseline accepts."""
        from pytest_cudafork.check.accepted import Acceptance

        return Acceptance(self.observer)

    def begin(self) -> None:
        """Begin to watch.

        Raises:
            WitnessError: the device that was asked for is not to be had in this process.

        """
        if _nested:
            _nested[-1]._rest()
        _nested.append(self)
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Stop watching, undo every change to the process, and wake the outer watch, if any."""
        if self not in _nested:
            return
        self._rest()
        _nested.remove(self)
        if _nested:
            _nested[-1]._start()

    def _start(self) -> None:
        settings = self.observer.settings
        self._undo.callback(self.observer.stop)
        self.observer.start()
        # Python processes that are started by exec find _startup/sitecustomize.py on their path.
        environment.set_variable(self._undo, environment.ROOT, ROOT)
        environment.prepend_path(self._undo, environment.PYTHON_PATH, STARTUP)
        rules = Rules(
            observer=self.observer,
            refuse=settings.level in _REFUSING_LEVELS,
            allow=(*DEFAULT_ALLOW, *settings.allow),
            error=lambda text, fork: self.refusals.refuse(text, fork),
            accepted=lambda: self.acceptance.of_fork(),
            detailed=settings.detailed,
        )
        if rules.refuse:
            self._undo.callback(self.refusals.threads.end)
            self.refusals.threads.begin()
        self._undo.callback(install_guard(rules).close)

    def _rest(self) -> None:
        self._undo.close()


# The witnesses, the guard and the at-fork record are facts of the process, so the watches over a
# process must know of each other.
_nested: list[Watch] = []


def current_watch() -> Watch | None:
    """Return the watch that is in force in this process."""
    return _nested[-1] if _nested else None


def tell_program(words: str) -> None:
    """Write what the watch over a program does not see, if this is one of its processes.

    Args:
        words: What that is, as where a process of it begins a watch of its own.

    """
    outer = current_watch()
    if outer is not None and environment.value(environment.PHASE) == environment.PROGRAM:
        outer.observer.note_limit(words)


def inherited_settings() -> WatchSettings | None:
    """Return the settings of the session that started this process, if it watches its children."""
    text = environment.value(environment.WATCH)
    if not text:
        return None
    try:
        return WatchSettings.from_text(text)
    except ValueError:
        return None  # not ours to complain about: the variable was set by something else


@functools.cache
def inherited_watch() -> Watch | None:
    """Return the watch this process inherited; None when it inherited none."""
    settings = inherited_settings()
    return Watch(settings, environment.value(environment.OWNER)) if settings is not None else None


def begin_inherited() -> None:
    """Begin the inherited watch; a failure is told on stderr and the process goes on unwatched.

    Subinterpreters begin like a process. They may not fork, and the watch of the main interpreter
    sees what they touch.
    """
    try:
        if not standard_library.in_main_interpreter():
            return
        watch = inherited_watch()
        if watch is None:
            return
        watch.begin()
        # A thread that touches just then may be a daemon, which ends with the process.
        atexit.register(watch.observer.settle_at_end)
        watch.observer.note_process()
        if watch.observer.settings.detailed or watch.observer.limits:
            watch.observer.note_watch()
    except Exception as error:
        # The process may have been started without a stderr, or with a broken one.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(f"pytest-cudafork: process {os.getpid()} is not watched: {error}\n")
