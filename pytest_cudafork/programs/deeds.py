"""What a program and all that descends from it did with CUDA and processes, out of its ledger."""

from __future__ import annotations

import enum
import multiprocessing
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_cudafork.capture.in_programs.told import Captures, read_captures
from pytest_cudafork.check.findings import Finding, expected_ids, find
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.observe.story.touch import Frame, Touch, frames_from
from pytest_cudafork.observe.story.words import fork_place, place_of
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.environment import COMMON_METHOD

_FATES = {
    "clean": "made, and harmless: CUDA was not initialized",
    "watched": "made; only --guard refuses forks",
    "guarded": "refused",
    "allowed": "made, as its module is allowed to fork",
    "accepted": "made, as the baseline accepts it",
    "unguarded": "made past the guard: by a kept os.fork, or touched by a handler of forks",
    "unknown": "made; whether CUDA was initialized there is not known",
}


class First(enum.Enum):
    """What the first process of a program is, as far as it can be watched."""

    PYTHON = "a Python"
    SEEN = "no Python; its touches are seen in the driver"
    UNSEEN = "no Python, and nothing sees what it does"
    NOT_THERE = "a Python that was given a script which is not there"


@dataclass(frozen=True)
class Fork:
    """A fork by Python code, or one that was refused.

    Attributes:
        pid: The process that forked.
        api: The call, such as ``os.fork``.
        verdict: "clean" (CUDA was not initialized there), "guarded" (refused), "allowed",
            "watched" (the level refuses none), "unguarded" (past the guard) or "unknown".
        frames: The stack of the call, innermost first.

    """

    pid: int
    api: str
    verdict: str
    frames: tuple[Frame, ...]

    @property
    def place(self) -> str:
        """The line that forks, as ``path:line``."""
        return place_of(self.frames)

    @property
    def fate(self) -> str:
        """What became of it, in words."""
        return _FATES.get(self.verdict, self.verdict)


@dataclass(frozen=True)
class ProcessStart:
    """A process that ``multiprocessing`` was told to start.

    Attributes:
        pid: The process that starts it.
        method: The start method by which it was started in fact.
        frames: The stack of the call, innermost first.

    """

    pid: int
    method: str
    frames: tuple[Frame, ...]

    @property
    def place(self) -> str:
        """The line that starts it, as ``path:line``."""
        return place_of(self.frames)


@dataclass(frozen=True)
class StartMethodInForce:
    """The start method of ``multiprocessing``'s default context in the program's first process.

    Attributes:
        method: Its name.
        why: Who chose it, and which variables that ask for another one were not heeded.

    """

    method: str
    why: str


@dataclass(frozen=True)
class Deeds:
    """What the ledger of one run tells.

    Attributes:
        processes: The command of each Python process that began by ``exec`` and was watched, by
            its process id.
        touches: The calls that initialize the CUDA driver, or try to, in order.
        forks: Those of Python code, in order.
        starts: What ``multiprocessing`` was told to start, in order.
        start_method: The method in force in the first process, and why.
        findings: The records that are errors.
        unseen: What could not be seen, in words; empty: nothing is known to be missing.
        judged: Whether enough was watched to say that nothing is wrong: the first process, or what
            it has started where it is no Python.
        lost: What is known to be missing from the ledger, in words.
        history: All of it, for stories.
        captures: What was found of captured graphs.

    """

    processes: Mapping[int, str]
    touches: tuple[Touch, ...]
    forks: tuple[Fork, ...]
    starts: tuple[ProcessStart, ...]
    start_method: StartMethodInForce
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    history: History
    judged: bool = True
    lost: tuple[str, ...] = ()
    captures: Captures = field(default_factory=Captures)


def read_deeds(
    records: Iterable[Record],
    pid: int,
    env: Mapping[str, str],
    level: Level,
    lost: Iterable[str],
    before: Iterable[Record] = (),
    first: First = First.PYTHON,
) -> Deeds:
    """Read the records of a run.

    Args:
        records: The ledger.
        pid: The program's first process.
        env: The environment that it was given.
        level: What is an error.
        lost: What is known to be missing from the ledger, in words.
        before: Records of what happened earlier, which stories may go back to.
        first: What the first process is.

    """
    records, lost = list(records), tuple(lost)
    history = History([*before, *records])
    processes = {
        int(record["pid"]): plain(" ".join(record.get("argv", ())))
        for record in records
        if record["k"] == "process"
    }
    forks = tuple(
        Fork(
            int(record["pid"]),
            plain(str(record.get("api", ""))),
            str(record.get("verdict", "")),
            frames_from(record.get("stack", ())),
        )
        for record in records
        if record["k"] == "fork"
    )
    starts = tuple(_start_of(record) for record in records if record["k"] == "start")
    touches = tuple(Touch.from_record(record) for record in records if record["k"] == "touch")
    ran = pid in processes and first is not First.NOT_THERE
    captures = read_captures(records)
    return Deeds(
        processes,
        touches,
        forks,
        starts,
        _method_in_force(records, pid, env),
        tuple(find(records, level, expected=expected_ids(records))),
        (*([] if ran else [_BLIND[first]]), *_limits(records), *captures.unseen(), *lost),
        history,
        ran or (first in (First.SEEN, First.UNSEEN) and bool(processes or touches)),
        lost,
        captures,
    )


def _start_of(record: Record) -> ProcessStart:
    frames = frames_from(record.get("stack", ()))
    return ProcessStart(int(record["pid"]), plain(str(record["method"])), frames)


def _method_in_force(
    records: Iterable[Record], pid: int, env: Mapping[str, str]
) -> StartMethodInForce:
    """Return the method of the default context, by who chose it last in the first process."""
    default = multiprocessing.get_all_start_methods()[0]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    method, why = default, f"the default of Python {version} on {sys.platform}"
    for record in records:
        if record["k"] == "method" and int(record["pid"]) == pid:
            line = fork_place(frames_from(record.get("stack", ())))
            method = plain(str(record["method"])) or default
            why = f"set by set_start_method at {line}"
    wanted = env.get(COMMON_METHOD)
    if wanted and wanted != method:
        why += f"; {COMMON_METHOD}={wanted} is set, which multiprocessing does not read"
    return StartMethodInForce(method, why)


_BLIND = {
    First.PYTHON: "the program's first process was not watched (it ended before its first line, "
    "its interpreter was told to leave its start-up out, or is older than Python 3.10), so that "
    "what it does is not known, or not by which line",
    First.SEEN: "forks of the program's first process, which is no Python; its touches of CUDA are "
    "seen in the driver",
    First.UNSEEN: "what the program's first process does, which is no Python",
    First.NOT_THERE: "the program, as there is no such file and nothing ran: a module is run by "
    "run -m MODULE, a program that is no Python script by run -- PROGRAM",
}


def _limits(records: Iterable[Record]) -> list[str]:
    """Say what could not be seen with the eyes of each process."""
    return list(
        dict.fromkeys(
            plain(limit)
            for record in records
            if record["k"] == "watch"
            for limit in record.get("limits", ())
        )
    )
