"""The error of a refused fork, and what became of it: whether it was caught by its name.

A refused fork that nobody hears of leaves a session green over an error. So each refusal is
followed to its end. Caught by its name (``except CudaForkError``, ``pytest.raises(CudaForkError)``)
it is expected, and a record in the ledger says so; any other fails the test, be it that the test
does not fail of it anyway.

An exception is over when nothing holds it any more; what became of one that is still held, as by
the variable of ``pytest.raises``, is asked when a phase of a test ends.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from pytest_cudafork.check import thread_refusals
from pytest_cudafork.check.thread_refusals import ThreadRefusals
from pytest_cudafork.compat.unpatched import contextlib, os, threading, time, weakref
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.base.records import file_of_stderr

if TYPE_CHECKING:
    from pytest_cudafork.check.caught import Caught

_LOOK = 0.01
"""Seconds between two looks at refusals in threads."""


class Notes(Protocol):
    """What is needed of the observer."""

    def note_caught(self, fork: str, **place: str | int | bool) -> None:
        """Write where the error of a refused fork was caught: the fields of ``Caught``."""


class Fate:
    """What has become of a refusal so far; it outlives the error."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        """The thread that was refused."""
        self.by_name = False
        """Whether the error was caught by its name."""
        self.ended_thread = False
        """Whether the thread died of it."""
        self.over = False
        """Whether nothing holds the error any more."""


class RefusedFork(CudaForkError):
    """A ``CudaForkError`` that knows which refusal it is of, and sees where it ends.

    ``fork_id`` is the id of the fork's record in the ledger. In another process an unpickled copy
    is followed as well: a child's error may be expected in its parent.
    """

    def __init__(
        self,
        text: str,
        fork_id: str,
        notes: Notes,
        put_off: Callable[[RefusedFork], None],
        addition: str = "",
    ) -> None:
        from pytest_cudafork.check import caught  # late: few sessions refuse a fork

        super().__init__(text + addition)
        self.fork_id = fork_id
        self.fate = Fate()
        self._text, self._addition = text, addition
        self._looks = caught
        self._notes = notes
        self._put_off = put_off
        self._pid = os.getpid()
        self._caught: Caught | None = None
        self._looked_at: TracebackType | None = None
        """That of the last look: an error that goes on gets another."""

    def again(self) -> Callable[[str], RefusedFork]:
        """Return what makes another error of the same refusal, which says something at its end.

        It does not hold this error, so that this may come to its end.
        """
        return functools.partial(RefusedFork, self._text, self.fork_id, self._notes, self._put_off)

    def tell(self, text: str) -> None:
        """Say this instead of the story, and at its end what was added to that."""
        self.args = (text + self._addition,)

    def settle(self) -> Caught | None:
        """Look where it has ended so far, and note it; None if that cannot be known."""
        traceback = self.__traceback__
        if traceback is not None and traceback is not self._looked_at:
            caught = self._looks.caught_at(traceback, CudaForkError)
            if caught != self._caught:
                self._caught = caught
                self.fate.by_name |= caught.by_name
                self.fate.ended_thread = caught.function.endswith("_bootstrap_inner")
                printed = {"printed": file_of_stderr()} if _is_printed(caught) else {}
                self._notes.note_caught(self.fork_id, **caught._asdict(), **printed)
            self._looked_at = traceback
        return self._caught

    def with_traceback(self, traceback: TracebackType | None, /) -> RefusedFork:
        """Let another be taken for a look at first, as unittest's ``assertRaises`` leaves none."""
        if traceback is not self.__traceback__:
            with contextlib.suppress(Exception):
                self.settle()
            self._looked_at = None
        super().with_traceback(traceback)
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as the refusal's text and id."""
        return _arrived, (str(self), self.fork_id)

    def __del__(self) -> None:
        # In a child that was forked meanwhile it is a copy in memory, which nobody has caught.
        with contextlib.suppress(Exception):
            if self._pid != os.getpid():
                return
            if self._looks.may_look():
                self.finish()
            else:
                self._put_off(self)

    def finish(self) -> None:
        """Look where it has ended, now that nothing holds it any more."""
        self.settle()
        self.fate.over = True


# It is shown as what it is to users, in tracebacks and by pytest.
for _attribute in ("__name__", "__qualname__", "__module__"):
    setattr(RefusedFork, _attribute, getattr(CudaForkError, _attribute))


def _is_printed(caught: Caught) -> bool:
    """Whether Python itself has printed an error, of which the process ended, to its stderr."""
    plainly = sys.excepthook is sys.__excepthook__ and sys.stderr is sys.__stderr__
    return caught.ended_process and plainly and sys.stderr is not None


def _arrived(text: str, fork_id: str) -> CudaForkError:
    """Make the copy of an error that another process has raised."""
    from pytest_cudafork.check.watch import current_watch

    watch = current_watch()
    return CudaForkError(text) if watch is None else watch.refusals.error(text, fork_id)


class Refusals:
    """The errors of refused forks in this process, for as long as something holds them."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._living: list[weakref.ref[RefusedFork]] = []
        """Several threads may add to it, so it is never replaced."""
        self._put_off: list[RefusedFork] = []
        """Errors that are over and could not be looked at yet."""
        self._fates: dict[str, Fate] = {}
        """What has become of each refusal, by the id of its fork."""
        self._phases = 0
        self.threads = ThreadRefusals(lambda: self._phases, self._finish)

    def refuse(self, text: str, fork_id: str) -> RefusedFork:
        """Make the error of a fork that is being refused in this thread."""
        error = self.error(text, fork_id)
        self.threads.look_after(error)
        return error

    def error(self, text: str, fork_id: str) -> RefusedFork:
        """Make the error of a refusal, be it one of another process."""
        self._finish()
        error = RefusedFork(text, fork_id, self._notes, self._put_off.append)
        self._living.append(weakref.ref(error))
        self._fates[fork_id] = error.fate
        return error

    def settle(self, passing: BaseException | None = None) -> None:
        """Note, at the end of a phase, where those have ended that something still holds.

        One that is ``passing`` through the caller has not ended.
        """
        self._phases += 1
        self._look(passing)

    def wait_for(self, forks: Mapping[str, int]) -> None:
        """Wait, a while at most, until it is known what becomes of refusals in other threads.

        Such a thread may be about to catch the error by its name.

        Args:
            forks: The native numbers of the threads that were refused, by the ids of the forks.

        """
        end = time.monotonic() + thread_refusals.GRACE
        while any(map(self._is_open, forks, forks.values())) and time.monotonic() < end:
            time.sleep(_LOOK)
            self._look()

    def _is_open(self, fork_id: str, thread: int) -> bool:
        """Whether a thread may still catch the error of its refusal, which may not be made yet."""
        fate = self._fates.get(fork_id)
        if fate is not None and (fate.by_name or fate.over):
            return False
        own = thread == threading.get_native_id()
        return not own and os.path.exists(f"/proc/self/task/{thread}")

    def _look(self, passing: BaseException | None = None) -> None:
        self._finish()
        for reference in list(self._living):
            error = reference()
            if error is None:
                self._living.remove(reference)
            elif error is not passing:
                with contextlib.suppress(Exception):
                    error.settle()

    def _finish(self) -> None:
        while self._put_off:
            with contextlib.suppress(Exception):
                self._put_off.pop().finish()


def refusals_shown_with(error: BaseException | None) -> Iterator[RefusedFork]:
    """Yield the refused forks that a traceback of this error shows: itself, causes, contexts."""
    if getattr(error, "pytrace", True) is False:
        return  # pytest shows the message alone
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, RefusedFork):
            yield each
        # As pytest and Python choose what they show of a chain.
        waiting.append(each.__cause__ or (None if each.__suppress_context__ else each.__context__))
        waiting.extend(getattr(each, "exceptions", ()))
