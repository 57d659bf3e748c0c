"""``watch()``: a part of a program under the watch, for programs that want to ask themselves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from pytest_cudafork.check.findings import Finding, tell, worst
from pytest_cudafork.check.watch import Watch, current_watch
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.programs.account import Account
from pytest_cudafork.programs.deeds import Deeds, Fork, read_deeds
from pytest_cudafork.programs.own_ledger import new_ledger, seen_device
from pytest_cudafork.settings import Level, environment

_REFUSING = frozenset({Level.FORK.value, Level.TOUCH.value})


class Watched:
    """What this process, and all that it has started, did while it was watched.

    Each question is answered from the ledger as it is now, or as it was when the watch ended.
    """

    def __init__(self, watch: Watch, *, told_before: int) -> None:
        """Read the ledger of a watch from a record on: an outer watch may have written before."""
        self._observer = watch.observer
        self._told_before = told_before
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._kept: Deeds | None = None
        self._seconds = 0.0

    def _end(self) -> None:
        """Keep what the ledger says, which may be gone afterwards."""
        deeds, self._seconds = self._deeds(), time.monotonic() - self._began
        self._kept = deeds

    def _deeds(self) -> Deeds:
        if self._kept is not None:
            return self._kept
        observer = self._observer
        everything = observer.records()
        before, after = everything[: self._told_before], everything[self._told_before :]
        records = own_records(after, self._pid)
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
        return tuple(fork for fork in self._deeds().forks if fork.verdict != "clean")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What of that is an error."""
        return self._deeds().findings

    @property
    def unseen(self) -> tuple[str, ...]:
        """What could not be seen, in words: that is not the same as clean."""
        return self._deeds().unseen

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
        return Account((), None, seconds, self._deeds(), self._observer.simulated).text()


def own_records(records: Iterable[Record], pid: int) -> list[Record]:
    """Return the records of a process and of what descends from it, as far as they tell.

    Of a watch that is also that of others, as in a test session with several workers.
    """
    records = list(records)
    parents = {int(r["pid"]): int(r["ppid"]) for r in records if r.get("ppid") is not None}
    family = {pid}
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    ids = {str(r["id"]) for r in records if int(r["pid"]) in family}
    return [r for r in records if int(r["pid"]) in family or str(r.get("fork")) in ids]


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
        ValueError: There is no such device, or not here.
        WitnessError: The device is not to be had in this process any more.
        RuntimeError: This is no Linux.
        OSError: The ledger cannot be written.

    """
    if sys.platform != "linux":
        raise RuntimeError(f"a watch works on Linux only, and this is {sys.platform}")
    with ExitStack() as undo:
        found = _in_force(undo, guard=guard, device=device)
        records = found.observer.records()
        watched = Watched(found, told_before=len(records))
        found.observer.note_process(began=False)
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
