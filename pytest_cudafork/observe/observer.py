"""The watch over one process: its witnesses, its part of the ledger, and what its forks inherit.

It runs in the pytest process and in every Python process that a session starts, so nothing here
needs pytest. What of it all is an error, ``check/`` decides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_cudafork.compat.unpatched import contextlib, os, threading, time
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.base.stacks import StackItem, stack_of
from pytest_cudafork.observe.driver.lineage import process_lineage
from pytest_cudafork.observe.driver.probe import (
    CudaState,
    Driver,
    DriverAnswer,
    answer_of_phantom,
    ask_driver,
    ask_torch,
    judge,
)
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.observe.story.stories import History
    from pytest_cudafork.observe.witnesses import Witnesses

_MOST_UNWRITTEN = 1.0
"""For how many seconds a thread that has touched is given the time to write by which line."""
_LOOK = 0.001


class Observer:
    """Watches this process, and every process forked from it, until ``stop``."""

    def __init__(self, settings: WatchSettings, owner: str) -> None:
        self.settings = settings
        self.ledger = Ledger(settings.ledger)
        self.owner = owner
        self.simulated = settings.device not in ("real", "none")
        """Whether the phantom stands in for the driver."""
        self.early = ask_driver().driver is Driver.INITIALIZED
        """Whether CUDA was already initialized when the watch began."""
        self.lineage = process_lineage()
        self.witnesses: Witnesses | None = None
        self._touched_before: set[int] = set()
        """Processes in which torch was seen to touch before the watch last rested."""
        self.faults: list[str] = []
        """Why something that was seen in this process is not in the ledger, in words."""
        self._counted_before = 0
        self._reader = self.ledger.reader()
        self._read: list[Record] = []
        self._history: History | None = None
        self._reading = threading.Lock()
        self._undo = contextlib.ExitStack()

    def start(self) -> None:
        """Install the witnesses and hand the watch on to child processes.

        Raises:
            WitnessError: the device that was asked for is not to be had here.

        """
        from pytest_cudafork.observe.witnesses import install

        environment.set_variable(self._undo, environment.LEDGER, self.settings.ledger)
        environment.set_variable(self._undo, environment.OWNER, self.owner)
        environment.set_variable(self._undo, environment.WATCH, self.settings.to_text())
        self._follow_forks()
        if self.settings.detailed:
            from pytest_cudafork.observe.base.process_starts import follow

            self._undo.callback(follow(self._note_start, self._note_method))
        self.witnesses = install(self.settings.device, self.record_touch, self.is_poisoned)
        self._undo.callback(self.witnesses.undo)
        native = self.witnesses.native
        if native is not None:
            self._counted_before = native.touch_count()
            native.remember(self.settings.ledger, self.owner)
            self._undo.callback(native.remember, "", "")

    def work_for(self, owner: str) -> Callable[[], None]:
        """Write for this pytest process from now on; the callable that is returned undoes it."""
        self.owner = owner
        if self.witnesses is not None and self.witnesses.native is not None:
            self.witnesses.native.remember(self.settings.ledger, owner)
        undo = contextlib.ExitStack()
        environment.set_variable(undo, environment.OWNER, owner)
        return undo.close

    def stop(self) -> None:
        """Take everything back that can be taken back."""
        if self._torch_touched():
            self._touched_before.add(os.getpid())
        self._undo.close()
        self.witnesses = None

    def _follow_forks(self) -> None:
        former = self.lineage.unclean, self.lineage.on_poisoned_child

        def restore() -> None:
            self.lineage.unclean, self.lineage.on_poisoned_child = former

        self.lineage.unclean = lambda: not self.state().safe_to_fork
        self.lineage.on_poisoned_child = self._note_child
        self._undo.callback(restore)

    def state(self) -> CudaState:
        """CUDA in this process, now."""
        return judge(
            self._ask_driver(),
            ask_torch(),
            simulated_touch=self._torch_touched(),
            poisoned_by=self.lineage.poisoned_by,
            forked_unwatched=self.lineage.forked_unwatched,
        )

    def _ask_driver(self) -> DriverAnswer:
        """Ask the driver; the phantom directly, as whoever opens a library can be kept from it."""
        native = self.witnesses.native if self.witnesses is not None else None
        if native is not None and native.is_phantom:
            return answer_of_phantom(native.state())
        return ask_driver()

    def settle(self) -> None:
        """Wait until what ``state`` has shown is in the ledger.

        A witness changes the state first, so that no fork is missed, and writes by which line it
        was a moment later: another thread may be between the two.
        """
        end = 0.0
        while self._is_writing():  # hardly ever: this is asked after each phase of each test
            end = end or time.monotonic() + _MOST_UNWRITTEN
            if time.monotonic() >= end:
                return
            time.sleep(_LOOK)

    def settle_at_end(self) -> None:
        """Wait likewise at the end of this process, after which nothing is written any more."""
        self.settle()
        if self._is_writing():
            self.ledger.mark_loss()

    def _is_writing(self) -> bool:
        return self.witnesses is not None and self.witnesses.is_writing()

    def _torch_touched(self) -> bool:
        if os.getpid() in self._touched_before:
            return True
        return self.witnesses is not None and self.witnesses.torch_touched()

    def is_poisoned(self) -> bool:
        """Whether this process was forked from an initialized one, by Python or by native code."""
        return self.lineage.poisoned_by is not None or self._ask_driver().driver is Driver.POISONED

    def record_touch(self, entry: str, *, again: bool, stack: list[StackItem]) -> None:
        """Write a touch that a witness in Python saw.

        Called from inside the user's call, which may catch any exception and take it for "no GPU":
        so a fault of ours is kept for the report instead of being raised.
        """
        try:
            self._record_touch(entry, again=again, stack=stack)
        except Exception as error:
            self._fault(f"{entry}: {error!r}")

    def _record_touch(self, entry: str, *, again: bool, stack: list[StackItem]) -> None:
        from pytest_cudafork.observe.driver.native_libs import CLEAN, INITIALIZED

        native = self.witnesses.native if self.witnesses is not None else None
        if self.simulated and native is not None and native.state() == CLEAN:
            # What torch was asked would have initialized a real driver: let the phantom know, so
            # that it poisons the children of this process as the real one would.
            native.reset(INITIALIZED)
        self._append(
            "touch",
            witness="torch",
            entry=entry,
            ppid=os.getppid(),
            library="",
            libraries=[],
            poisoned=self.is_poisoned(),
            again=again,
            stack=stack,
            gil="held",
            result=None,
        )

    def note_fork(
        self, *, api: str, verdict: str, rule: str, state: CudaState, frame: FrameType | None
    ) -> str:
        """Write a fork that happens or is refused; return its id."""
        fork = self._append(
            "fork",
            api=api,
            verdict=verdict,
            rule=rule,
            state=state.verdict.value,
            ppid=os.getppid(),
            stack=stack_of(frame),
        )
        # A refused fork has no child that could be told which fork made it.
        self.lineage.next_fork = "" if verdict == "guarded" else fork
        return fork

    def note_caught(self, fork: str, **place: str | int | bool) -> None:
        """Write where the error of a refused fork was caught, and whether by its name."""
        self._append("caught", fork=fork, **place)

    def _note_child(self) -> None:
        lineage = self.lineage
        more = {"program": True} if lineage.starts_program else {}
        self._append(
            "child", parent=lineage.poisoned_by, fork=lineage.forked_by, ppid=os.getppid(), **more
        )

    def note_process(self, *, began: bool = True) -> None:
        """Write that this process is watched, and whether it began just now, by exec."""
        argv = [str(arg) for arg in sys.orig_argv[:8]]
        more: dict[str, object] = {} if began else {"began": False}
        if began and self.early:
            more["early"] = True
        if blocks := environment.value(environment.BLOCKS):
            more["blocks"] = blocks.split()
        self._append("process", ppid=os.getppid(), argv=argv, **more)

    def _note_start(self, method: str, stack: list[StackItem]) -> None:
        self._append("start", method=method, ppid=os.getppid(), stack=stack)

    def _note_method(self, method: str, stack: list[StackItem]) -> None:
        self._append("method", method=method, ppid=os.getppid(), stack=stack)

    def note_told(self, culprit: str, nodeid: str) -> None:
        """Write that the failure of a test tells this culprit in full."""
        self._append("told", culprit=culprit, at=nodeid)

    def note_reported(self, touch_ids: list[str]) -> None:
        """Write that these touches have failed a test, so that nobody reports them again."""
        self._append("reported", ids=touch_ids)

    def note_late(self, touch_ids: list[str]) -> None:
        """Write that these touches are errors of tests that were over when they were seen."""
        self._append("late", ids=touch_ids)

    def note_baseline(self, **fields: object) -> None:
        """Write what the baseline of this session accepts."""
        self._append("baseline", **fields)

    def note_accepted(self, ids: list[str], what: list[str]) -> None:
        """Write that the baseline accepts these records, and by which entry."""
        self._append("accepted", ids=ids, what=what)

    def note_ran(self, place: str) -> None:
        """Write that a place of the baseline was passed: a test, a collection."""
        self._append("ran", place=place)

    def note_deselected(self, count: int) -> None:
        """Write that tests were left out of the session."""
        self._append("deselected", count=count)

    def note_captures(self, found: dict[str, Any]) -> None:
        """Write what was found of captured graphs, as ``capture/judge`` has it as plain values."""
        self._append("captures", found=found)

    def note_end(self, **fields: object) -> None:
        """Write how the session ended."""
        self._append("end", **fields)

    def _append(self, kind: str, **fields: Any) -> str:
        try:
            # The owner is not left to the environment: a test may have cleared that for a while.
            return self.ledger.append(kind, owner=self.owner, **fields)
        except Exception as error:
            # The session's directory is gone (the session ended before this process did), the disk
            # is full, or a hook of the audit (which may raise anything) allows no files. The
            # program under test must not fail for that.
            self._fault(str(error) if isinstance(error, OSError) else repr(error))
            return ""

    def _fault(self, text: str) -> None:
        self.faults.append(f"something was seen and could not be recorded: {text}")

    def lost_records(self) -> tuple[str, ...]:
        """Return what is known to be missing from the ledger, in words: nobody can say of what."""
        reader = self.ledger.reader()
        try:
            return (*dict.fromkeys(self.faults), *reader.damage())
        finally:
            reader.close()

    def untold_touches(self, records: list[Record]) -> tuple[str, ...]:
        """Return, in words, that the driver knows of a touch in this process and no record does."""
        native = self.witnesses.native if self.witnesses is not None else None
        touched = native is not None and native.touch_count() > self._counted_before
        if touched and not _tells_of_touch_here(records):
            self.settle()  # another thread may have touched since the records were read
            if not _tells_of_touch_here(self.records()):
                return ("the driver was initialized in this process, and no record tells how",)
        return ()

    def note_watch(self) -> None:
        """Write who watches with which eyes: an empty ledger may be a blind one."""
        self._append(
            "watch",
            level=self.settings.level,
            device=self.settings.device,
            witness=self.witnesses.words if self.witnesses else "none",
            limits=list(self.limits),
        )

    def note_limit(self, words: str) -> None:
        """Write what this watch does not see."""
        self._append("watch", limits=[words])

    def note_host(self, **fields: object) -> None:
        """Write what became of a worker on another host, when it has ended."""
        self._append("host", **fields)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the witnesses in this process cannot see, in words."""
        return self.witnesses.limits if self.witnesses is not None else ()

    def records(self) -> list[Record]:
        """Everything in the ledger so far.

        Each refused fork asks, and there may be thousands, so what has been read is kept.
        """
        # A lock that another thread held when this process was forked is never given back.
        if not self._reading.acquire(blocking=False):
            reader = self.ledger.reader()
            try:
                return reader.new()
            finally:
                reader.close()
        try:
            if not self._reader.goes_on():
                self._reader, self._read = self.ledger.reader(), []
            self._read += self._reader.new()
            return list(self._read)
        finally:
            self._reader.close()
            self._reading.release()

    def history(self) -> History:
        """The same as ``records``, with the questions that stories ask; kept and added to, too."""
        from pytest_cudafork.observe.story.stories import History

        records = self.records()
        if not self._reading.acquire(blocking=False):
            return History(records)
        try:
            if self._history is None or not _begins_with(records, self._history.records):
                self._history = History()
            self._history.add(records[len(self._history.records) :])
            return self._history
        finally:
            self._reading.release()


def _begins_with(records: list[Record], some: list[Record]) -> bool:
    """Whether the others are what was read before: a ledger that is replaced is read anew."""
    return len(some) <= len(records) and (not some or some[-1] is records[len(some) - 1])


def _tells_of_touch_here(records: list[Record]) -> bool:
    here = os.getpid()
    return any(record["k"] == "touch" and record["pid"] == here for record in records)
