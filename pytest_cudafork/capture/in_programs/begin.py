"""The look at captures in a watched program: begun at its start, told by records of its ledger.

It comes into force when torch has been imported, in the thread that imports it, and lasts as long
as the process: there is no end at which a program could be asked, and a forked child of
``multiprocessing`` ends without ``atexit``. So what is found is written down at once, and how much
was looked at with the next event and when the interpreter ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_cudafork.capture.interface.seen import Listener, SeenCapture
from pytest_cudafork.check.watch import current_watch
from pytest_cudafork.observe.base.after_import import after_import
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.capture.in_tests.listeners import Watching


def begin_inherited() -> None:
    """Begin to look at captures, as the environment says."""
    how = environment.value(environment.CAPTURES)
    if how:
        watch = current_watch()
        _write({"asked": watch.observer.settings.device if watch is not None else ""})
        ProgramCaptures(how).begin()


class ProgramCaptures(Listener):
    """What looks at the captures of this process."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._watching: Watching | None = None
        self._for_ever = contextlib.ExitStack()
        self._has_begun = False
        self._elsewhere = False
        self._told: set[str] = set()
        self._counts = _Counts()

    def begin(self) -> None:
        """Begin, as soon as torch has been imported."""
        after_import("torch", self._enter)

    def _enter(self, module: object) -> None:
        if self._has_begun:  # torch was executed again
            return
        self._has_begun = True
        try:
            self._set_up()
        except Exception as error:  # the program runs as it would
            _write({"broken": f"{type(error).__name__}: {error}"})

    def _set_up(self) -> None:
        from pytest_cudafork.capture.choose import why_no_gpu
        from pytest_cudafork.capture.in_tests.listeners import Watching

        self._watching = Watching(self._how, self)
        if self._watching.judge is not None:
            self._watching.judge.findings.heard = self.tell
        if why_no_gpu() is not None:
            from pytest_cudafork.capture.stand_ins.in_force import in_force

            self._for_ever.enter_context(in_force(_part_failed))
        self._for_ever.enter_context(self._watching.in_force("", failed=_part_failed))
        atexit.register(self.tell_all)
        os.register_at_fork(after_in_child=self._forget_parent)

    def on_capture_elsewhere(self) -> None:
        """Write down that a graph is not looked at, as another thread captures or replays it."""
        if not self._elsewhere:
            self._elsewhere = True
            _write({"elsewhere": True})

    def on_capture_begin(self, capture: SeenCapture) -> None:
        """Write down what was found until now."""
        self.tell()

    def on_capture_end(self, capture: SeenCapture) -> None:
        """Write down what was found of it."""
        self.tell()

    def on_replay_begin(self, capture: SeenCapture) -> None:
        """Write down what was found of what the graph is about to read."""
        self.tell()

    def on_unseen_replay(self) -> None:
        """Write down that there was a replay that is not looked at."""
        self.on_capture_elsewhere()

    def _forget_parent(self) -> None:
        """Leave to the parent of a forked child what the parent has not written down yet."""
        if self._watching is not None:
            self._watching.take()
        self._counts.take()

    def tell(self) -> None:
        """Write into the ledger what was found that is new; a server replays for days."""
        found = self._watching.take() if self._watching is not None else {}
        self._counts.add(found)
        news = {name: self._new(found.get(name, ())) for name in ("errors", "suspicions")}
        if any(news.values()) or self._counts.is_news:
            _write({**{name: each for name, each in news.items() if each}, **self._counts.take()})

    def tell_all(self) -> None:
        """Write down the rest: the interpreter ends."""
        self.tell()
        counts = self._counts.take()
        if counts:
            _write(counts)

    def _new(self, findings: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those that have not been written down."""
        from pytest_cudafork.capture.in_tests.words import key_of

        new = []
        for each in findings:
            key = key_of(each)
            if key not in self._told:
                self._told.add(key)
                new.append(each)
        return new


class _Counts:
    """How much was looked at, and could not be judged, since that was written down."""

    def __init__(self) -> None:
        self._captured = self._replays = self._judged = 0
        self._gaps: Counter[str] = Counter()
        self._known: set[str] = set()

    @property
    def is_news(self) -> bool:
        """Whether a capture is among them, or a reason that was never written down."""
        return self._captured > 0 or not self._gaps.keys() <= self._known

    def add(self, found: Mapping[str, Any]) -> None:
        """Add what was found."""
        self._captured += found.get("captures", 0)
        self._replays += found.get("replays", 0)
        self._judged += found.get("judged", 0)
        self._gaps.update(found.get("not_judged", {}))

    def take(self) -> dict[str, Any]:
        """Return them as a record has them, and begin anew."""
        self._known |= self._gaps.keys()
        counts = {
            "captured": self._captured,
            "replays": self._replays,
            "judged": self._judged,
            "not_judged": dict(self._gaps),
        }
        self._captured = self._replays = self._judged = 0
        self._gaps = Counter()
        return {name: each for name, each in counts.items() if each}


def _part_failed(name: str, error: Exception) -> None:
    """Write down that what waited for the import of a module could not be set up."""
    _write({"broken": f"setting that up for {name} failed: {type(error).__name__}: {error}"})


def _write(found: dict[str, Any]) -> None:
    watch = current_watch()
    if watch is not None:
        watch.observer.note_captures(found)
