"""Forks that are refused in another thread than the main one: nobody may wait for it for ever.

A pool's own thread forks new workers. If it is refused, it dies of the error, and whoever waits for
a result waits for ever, in silence. So a refusal in such a thread is looked after: once nothing in
the thread expects it, the story is written past pytest's capture, and if the main thread does not
come to the end of what it does, the error is raised there as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from pytest_cudafork.check.main_thread import MainThread
from pytest_cudafork.compat.unpatched import contextlib, os, threading, time, weakref
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.base.stacks import frames_of_threads, outward

if TYPE_CHECKING:
    from pytest_cudafork.check.refusal import Fate, RefusedFork

_LOOK = 0.05
"""Seconds between two looks at a thread that was refused a fork."""
GRACE = 1.0
"""Seconds in which the main thread may end what it does by itself."""
_AGAIN = 2.0
"""Seconds after which the main thread is interrupted again, where it has caught the error."""
STUCK = 2.0
"""Seconds for which it stands at one place before it counts as waiting for a dead thread."""


class PastCapture:
    """What was descriptor 2 when the watch began: the terminal's, or the log's."""

    def __init__(self) -> None:
        try:
            self._fd = os.dup(2)
            self._file = self._status(self._fd)
        except OSError:  # there is none
            self._fd, self._file = -1, (0, 0)

    @staticmethod
    def _status(fd: int) -> tuple[int, int]:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino

    def write(self, text: str) -> None:
        """Write at once; to descriptor 2 as it is now where a test has closed the other."""
        fd = self._fd if self._is_ours() else 2
        with contextlib.suppress(OSError):
            os.write(fd, text.encode(errors="replace"))

    def close(self) -> None:
        """Give the descriptor back."""
        if self._is_ours():
            os.close(self._fd)
        self._fd = -1

    def _is_ours(self) -> bool:
        """Whether no test has closed it; its number may be another file's by then."""
        try:
            return self._fd >= 0 and self._status(self._fd) == self._file
        except OSError:
            return False


class ThreadRefusals:
    """Looks after the refusals in threads of this process, between ``begin`` and ``end``.

    ``phase`` is called for what the main thread is at: the phase of a test. It changes when
    that is over. ``finish`` looks at the errors that are over and could not be looked at then.
    """

    def __init__(self, phase: Callable[[], int], finish: Callable[[], None]) -> None:
        self._phase = phase
        self._finish = finish
        self._main = MainThread()
        self._terminal: PastCapture | None = None
        self._told: set[str] = set()
        """The culprits whose story was written past the capture."""
        self._lost: set[str] = set()
        """The libraries of which a thread was lost."""
        self._over = False

    def begin(self) -> None:
        """Be ready to write past the capture, and to reach the main thread."""
        self._over = False
        if self._terminal is None:
            self._terminal = PastCapture()
            self._main.begin()

    def end(self) -> None:
        """Look after nothing any more.

        Where a library has lost a thread, that goes on: what waits for it when the process ends
        (multiprocessing ends its pools then) would wait for ever.
        """
        self._over = True
        if self._lost:
            return
        self._main.end()
        if self._terminal is not None:
            self._terminal.close()
        self._terminal = None

    def look_after(self, error: RefusedFork) -> None:
        """Look after a refusal that is about to be raised in the thread that calls."""
        if self._terminal is None or not _is_other_thread():
            return
        watcher = threading.Thread(
            target=self._watch,
            args=(
                weakref.ref(error),
                error.fate,
                error.again(),
                _library_that_runs(sys._getframe()),
                self._phase(),  # now: the main thread may have come further when the watcher begins
            ),
            name="pytest-cudafork: refused fork",
            daemon=True,
        )
        with contextlib.suppress(RuntimeError):  # no further thread can be had
            watcher.start()

    def _watch(
        self,
        reference: weakref.ref[RefusedFork],
        fate: Fate,
        again: Callable[[str], RefusedFork],
        library: str,
        phase: int,
    ) -> None:
        if not self._is_lost(reference, fate, phase):
            return
        thread = fate.thread.name
        how = "ended by it" if fate.ended_thread else "swallowed its error"
        library = library if fate.ended_thread else ""
        terminal = self._terminal
        if terminal is None:
            return
        if library:
            self._lost.add(library)
        story = str(again(""))
        first = story.partition("\n")[0]
        culprit = first.partition(": ")[2]
        terminal.write(
            f"\nIn thread {thread!r}, which {how}:\n{first if culprit in self._told else story}\n"
        )
        self._told.add(culprit)
        why = (
            f"\n\nThe fork was refused in thread {thread!r}, which {how}. What waits for that "
            "thread would wait for ever, so the error is raised in the main thread, too."
        )

        def make() -> BaseException | None:
            if self._terminal is not terminal:
                return None
            return CudaForkError(first + why) if self._over else again(why)

        # The main thread goes on until it takes the signal, and may be where no error belongs then.
        def make_in_phase(frame: FrameType | None) -> BaseException | None:
            return make() if self._phase() == phase else None

        def make_in_library(frame: FrameType | None) -> BaseException | None:
            return make() if _calls(frame, library) else None

        due = time.monotonic() + GRACE
        while self._terminal is terminal:
            time.sleep(_LOOK)
            if self._phase() != phase:
                break
            if time.monotonic() >= due:
                self._main.interrupt(make_in_phase)
                due = time.monotonic() + _AGAIN
        # A test after this one may wait for what the thread did for all of them.
        for _ in self._waits_in(library):
            if self._terminal is not terminal:
                return
            self._main.interrupt(make_in_library)

    def _is_lost(self, reference: weakref.ref[RefusedFork], fate: Fate, phase: int) -> bool:
        """Wait until it is known whether anything hears of the refusal; False if so, or too late.

        An error that something still holds, as a future does, may be raised again by that. It is
        lost if the function that caught it goes on with something else, a loop or a wait.
        """
        from pytest_cudafork.check.caught import may_look  # late, as the errors import it

        begin, last = time.monotonic(), float("inf")
        while self._terminal is not None and time.monotonic() < last:
            dead = not fate.thread.is_alive()
            late = time.monotonic() - begin > GRACE
            error = reference()
            if may_look():
                self._finish()
                if error is not None and (dead or late):
                    error.settle()
            if fate.by_name:
                return False
            if fate.over or fate.ended_thread:
                return True
            if error is not None and late and _runs(fate.thread, error.__traceback__):
                return True
            del error
            if last == float("inf") and self._phase() != phase:
                last = time.monotonic() + GRACE
            time.sleep(_LOOK)
        return False

    def _waits_in(self, filename: str) -> Iterator[None]:
        """Yield whenever the main thread stands still in calls of the code that the thread ran."""
        stands: tuple[FrameType, int] | None = None
        since = time.monotonic()
        while filename and self._terminal is not None:
            time.sleep(STUCK / 4)
            frame = _frame_of(threading.main_thread())
            # The frame itself: the next one may be where one was that is over.
            place = (frame, frame.f_lasti) if frame is not None else None
            if place != stands or not _calls(frame, filename):
                stands, since = place, time.monotonic()
            elif time.monotonic() - since >= STUCK:
                yield
                since = time.monotonic() + _AGAIN


def _is_other_thread() -> bool:
    """Whether this runs in a thread beside the main one, and one that a watcher can run beside.

    Where gevent or eventlet has replaced the threads of a program, a watcher would be a greenlet of
    this very thread, and by waiting keep it from ever going on.
    """
    if threading.get_ident is not sys.modules["threading"].get_ident:
        return False
    return threading.current_thread() is not threading.main_thread()


def _frame_of(thread: threading.Thread) -> FrameType | None:
    return frames_of_threads().get(thread.ident or 0)


def _runs(thread: threading.Thread, traceback: TracebackType | None) -> bool:
    """Whether the function that has caught an error is still running."""
    caught_in = traceback.tb_frame if traceback is not None else None
    return any(frame is caught_in for frame in outward(_frame_of(thread)))


def _calls(frame: FrameType | None, filename: str) -> bool:
    return any(each.f_code.co_filename == filename for each in outward(frame))


def _library_that_runs(frame: FrameType | None) -> str:
    """Return the file of the function that a thread runs, if a library's; "" if the user's."""
    from pytest_cudafork.observe.story.touch import Frame

    files = [each.f_code.co_filename for each in outward(frame)]
    filename = next((file for file in reversed(files) if file != threading.__file__), "")
    return filename if Frame(filename, 0, "").package else ""
