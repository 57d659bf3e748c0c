"""``watch()``: a part of a program under the watch, for programs that want to ask themselves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

from pytest_cudafork.check.findings import Finding, tell, worst
from pytest_cudafork.check.watch import Watch, current_watch
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.process.descendants import leftovers, process_state
from pytest_cudafork.programs.account import Account, initialized_forks
from pytest_cudafork.programs.deeds import Deeds, Fork, read_deeds
from pytest_cudafork.programs.own_ledger import named_device, new_ledger, seen_device
from pytest_cudafork.programs.program import LeftProcess
from pytest_cudafork.settings import Level, environment

_HELPERS = (
    "from multiprocessing.forkserver import main",
    "from multiprocessing.resource_tracker import main",
    "torch_shm_manager",
    "from pytest_cudafork.process.",
)
"""What the command line of a process holds that stays for the next one that asks: of
``multiprocessing``, of torch and of this package."""
_NAME_BYTES = 4
_SLACK_NS = 10**9
_REFUSING = frozenset({Level.FORK.value, Level.TOUCH.value})


class Block(NamedTuple):
    """A block of ``watch()``.

    Attributes:
        name: By which what is started in it knows it.
        told_before: How many records the ledger held when it began.
        shares: Whether that is the ledger of a watch that was in force already.

    """

    name: str
    told_before: int
    shares: bool


class Watched:
    """What this process, and all that it has started, did while it was watched.

    Each question is answered from the ledger as it is now, or as it was when the watch ended.
    """

    def __init__(self, watch: Watch, block: Block) -> None:
        """Read the ledger of a watch from the beginning of a block on."""
        self._observer = watch.observer
        self._block = block
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._before = frozenset(leftovers.descendants(self._pid))
        self._kept: Deeds | None = None
        self._running: tuple[LeftProcess, ...] = ()
        self._seconds = 0.0

    def _end(self) -> None:
        """Keep what the ledger says, which may be gone afterwards."""
        deeds, self._seconds = self._deeds(), time.monotonic() - self._began
        if os.getpid() == self._pid:  # a forked child may leave the block, too
            self._running = _running_on(self._pid, self._before, deeds)
        self._kept = deeds

    def _deeds(self) -> Deeds:
        if self._kept is not None:
            return self._kept
        observer = self._observer
        observer.settle()
        everything = observer.records()
        start = self._block.told_before
        before, after = everything[:start], everything[start:]
        records = after
        if self._block.shares:
            records = own_records(before, after, self._pid, self._block.name)
        limits = list(observer.limits)
        if observer.early and not any(record["k"] == "touch" for record in before):
            limits.insert(0, "CUDA was initialized before the watch began; by whom is not known")
        limits += observer.untold_touches(records)
        level = Level(observer.settings.level)
        lost = observer.lost_records()
        deeds = read_deeds(records, self._pid, os.environ, level, lost, before)
        return replace(deeds, unseen=(*dict.fromkeys((*limits, *deeds.unseen)),))

    @property
    def touches(self) -> tuple[Touch, ...]:
        """The calls that initialized CUDA, or tried to."""
        return self._deeds().touches

    @property
    def forks(self) -> tuple[Fork, ...]:
        """The forks by Python code while CUDA was initialized, refused ones too."""
        return tuple(initialized_forks(self._deeds().forks))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What of that is an error."""
        return self._deeds().findings

    @property
    def unseen(self) -> tuple[str, ...]:
        """What could not be seen, in words: that is not the same as clean."""
        return self._deeds().unseen

    @property
    def running(self) -> tuple[LeftProcess, ...]:
        """What was started in the block and ran on at its end, as far as that is known.

        What it does from then on is not seen.
        """
        return self._running

    def check(self) -> None:
        """Check that nothing is an error.

        Raises:
            CudaForkError, PoisonedTouchError: Something is; told with its line.

        """
        __tracebackhide__ = True
        deeds = self._deeds()
        if deeds.findings:
            findings = list(deeds.findings)
            simulated = self._observer.simulated
            raise worst(findings).error(tell(findings, deeds.history, simulated=simulated, told={}))

    def __str__(self) -> str:
        """Tell it, as ``python -m pytest_cudafork run`` would."""
        seconds = self._seconds if self._kept is not None else time.monotonic() - self._began
        deeds, running = self._deeds(), tuple((one.pid, one.command) for one in self._running)
        return Account((), None, seconds, deeds, self._observer.simulated, running).text()


def _running_on(pid: int, before: Collection[int], deeds: Deeds) -> tuple[LeftProcess, ...]:
    """Return what runs of a process's descendants, but for those from before and for helpers.

    One that has lost its parent is known where it is a Python that was watched.
    """
    began = {
        int(record["pid"]): int(record["t"])
        for record in deeds.history.records
        if record["k"] == "process" and int(record["pid"]) in deeds.processes
    }
    watched = {
        each
        for each, when in began.items()
        # else its number is another's
        if process_state.monotonic_of(process_state.started_at(each)) <= when + _SLACK_NS
    }
    found = sorted({*leftovers.descendants(pid), *watched} - {pid, *before})
    commands = {each: process_state.program_of(each) for each in found if process_state.lives(each)}
    return tuple(
        LeftProcess(each, command)
        for each, command in commands.items()
        # What a fork server has forked has its command line.
        if not any(words in command for words in _HELPERS)
        or command == process_state.program_of(process_state.parent_of(each))
    )


def own_records(
    before: Iterable[Record], after: Iterable[Record], pid: int, block: str
) -> list[Record]:
    """Return what a process and all that it has started wrote in a block, in a ledger of others.

    That is of processes with such an ancestor, or of a Python that was started in the block and
    knows it: what started it may be no Python (a shell), or may have ended. A program that is no
    Python itself knows no block; without an ancestor it is taken for one of the test's.

    Args:
        before: Records from before the block, which tell of ancestors.
        after: Those that the block and others have written since.
        pid: The process with the block.
        block: Its name.

    """
    before, after = list(before), list(after)
    known = [*before, *after]
    seen = {int(r["pid"]) for r in known}
    parents = {int(r["pid"]): int(r["ppid"]) for r in known if r.get("ppid") is not None}
    python = {int(r["pid"]) for r in known if r["k"] in ("process", "child")}
    places = {_place(r) for r in after if int(r["pid"]) == pid}
    family = {pid, *(int(r["pid"]) for r in after if block in r.get("blocks", ()))}
    for record in after:
        own, parent = int(record["pid"]), parents.get(int(record["pid"]))
        if own not in python and parent not in seen and _place(record) in places:
            family.add(own)
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    ids = {str(r["id"]) for r in after if int(r["pid"]) in family}
    return [r for r in after if int(r["pid"]) in family or str(r.get("fork")) in ids]


def _place(record: Record) -> tuple[object, object]:
    """Return the process and the test for which a record was written."""
    return record.get("owner"), record.get("test")


@contextmanager
def watch(*, guard: bool = False, device: str | None = None) -> Iterator[Watched]:
    """Watch this process, and all that it starts, until the end of the ``with`` block.

    Where a watch is in force already (a checked test session, ``python -m pytest_cudafork run``)
    that one goes on, and what it sees is told here, too.

    Args:
        guard: Whether a fork while CUDA is initialized is refused, by a ``CudaForkError``.
        device: The driver to see, as in ``--cuda-fork-device``; None: what is here. A watch that is
            in force keeps its own.

    Raises:
        TypeError: The device is no text.
        ValueError: There is no such device, or not here.
        WitnessError: The device is not to be had in this process any more.
        RuntimeError: This is no Linux.
        OSError: The ledger cannot be written.

    """
    if sys.platform != "linux":
        raise RuntimeError(f"a watch works on Linux only, and this is {sys.platform}")
    named_device(device)  # a watch that is in force asks for none
    with ExitStack() as undo:
        shares = current_watch() is not None
        found = _in_force(undo, guard=guard, device=device)
        block = Block(os.urandom(_NAME_BYTES).hex(), len(found.observer.records()), shares)
        watched = Watched(found, block)
        found.observer.note_process(began=False)
        _name_block(undo, block.name)
        passing: BaseException | None = None
        try:
            yield watched
        except BaseException as error:
            passing = error
            raise
        finally:
            found.refusals.settle(passing)
            del passing  # with its traceback it would hold this frame, and so itself
            watched._end()


def _name_block(undo: ExitStack, name: str) -> None:
    """Tell what is started from now on in which block that is, until ``undo`` is closed.

    Blocks of several tasks may end in any order.
    """

    def take_back() -> None:
        left = [each for each in environment.value(environment.BLOCKS).split() if each != name]
        environment.take(environment.BLOCKS)
        if left:
            environment.put(environment.BLOCKS, " ".join(left))

    outer = environment.value(environment.BLOCKS)
    environment.put(environment.BLOCKS, f"{outer} {name}".strip())
    undo.callback(take_back)


def _in_force(undo: ExitStack, *, guard: bool, device: str | None) -> Watch:
    """Return the watch that is in force, or one that is begun."""
    outer = current_watch()
    if outer is not None and (not guard or outer.observer.settings.level in _REFUSING):
        return outer
    level = Level.FORK.value if guard else Level.POISON.value
    if outer is not None:  # the same ledger, so that the outer one misses nothing
        settings = outer.observer.settings._replace(level=level)
        inner = Watch(settings, outer.observer.owner)
    else:
        if not environment.is_set(environment.PHASE) and not environment.is_set(environment.TEST):
            environment.set_variable(undo, environment.PHASE, environment.PROGRAM)
        settings = WatchSettings(new_ledger(undo), seen_device(device), level)
        inner = Watch(settings, str(os.getpid()))
    inner.begin()
    undo.callback(inner.end)
    return inner
