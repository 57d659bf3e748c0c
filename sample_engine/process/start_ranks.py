"""Starts the processes of an engine: one, or one for each rank, with the pipes between them.

The front end has a pipe to each of them. Rank 0 is the engine core, and has a pipe to each of the
other ranks: it tells them what it is told.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe

from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import ConfigError
from sample_engine.process.core_process import CoreFactory, CoreOrder, RankOrder
from sample_engine.process.memory_file import MemoryFile
from sample_engine.process.rank_process import KILL_SECONDS, RankProcess, limit_waits
from sample_engine.process.standard_streams import fill_standard_descriptors
from sample_engine.process.stderr_log import StderrLog

__all__ = ["STEP_SECONDS_ENV", "seconds_of", "start_ranks", "step_seconds"]

STEP_SECONDS_ENV = "SAMPLE_ENGINE_STEP_SECONDS"
_STEP_SECONDS = 300.0


def start_ranks(
    method: WorkerMethod,
    config: EngineConfig,
    factory: CoreFactory,
    owner: int,
    step_seconds: float,
) -> list[RankProcess]:
    """Start them all by the same method, rank 0 first. It waits for none of them.

    Where one cannot be started, those that were are ended.
    """
    fill_standard_descriptors()  # before pipes and files are opened
    size = config.tensor_parallel_size
    started: list[RankProcess] = []
    with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
        ours, theirs = _pipes(size, undo, always)
        to_others, to_first = _pipes(size - 1, always, always)
        for link in to_others:
            limit_waits(link)
        rendezvous = MemoryFile()
        always.callback(rendezvous.close)
        undo.callback(_end, started)
        all_ends = {*ours, *theirs, *to_others, *to_first}
        for rank in range(size):
            links = tuple(to_others) if rank == 0 else (to_first[rank - 1],)
            place = RankOrder(rank, size, rendezvous, links, step_seconds) if size > 1 else None
            to_close = all_ends - {theirs[rank], *links} if method is WorkerMethod.FORK else ()
            log = StderrLog()
            undo.callback(log.close)
            order = CoreOrder(theirs[rank], factory, config, owner, log, tuple(to_close), place)
            started.append(RankProcess(method, order, ours[rank]))
        undo.pop_all()
    return started


def step_seconds() -> float:
    """How long a step of several ranks may take before one of them counts as stuck."""
    return seconds_of(os.environ, STEP_SECONDS_ENV, _STEP_SECONDS)


def seconds_of(environ: Mapping[str, str], name: str, usual: float) -> float:
    """A number of seconds that a variable may set. Raises :class:`ConfigError` for a wrong one."""
    text = environ.get(name, "").strip()
    try:
        seconds = float(text) if text else usual
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"{name}={text!r} is not a number of seconds above 0.")
    return seconds


def _pipes(
    count: int, left: contextlib.ExitStack, right: contextlib.ExitStack
) -> tuple[list[Connection], list[Connection]]:
    """So many pipes, their left ends and their right ends; the stacks close them."""
    lefts, rights = [], []
    for _ in range(count):
        one, other = Pipe()
        left.callback(one.close)
        right.callback(other.close)
        lefts.append(one)
        rights.append(other)
    return lefts, rights


def _end(started: list[RankProcess]) -> None:
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait_for_end(KILL_SECONDS)
        process.exit_code()  # reaps it
        process.close()
