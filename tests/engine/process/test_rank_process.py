"""One process of an engine: signals to it, its stacks, what became of it, and what it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import types
from collections.abc import Iterator
from multiprocessing.connection import Pipe

import pytest

from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.process import rank_process
from sample_engine.process.core_process import CoreOrder, RankOrder
from sample_engine.process.memory_file import MemoryFile
from sample_engine.process.rank_process import STUCK_SECONDS, RankProcess, limit_waits
from sample_engine.process.stderr_log import StderrLog
from tests.engine.support.process import (
    HANG_SECONDS,
    Milestone,
    Script,
    descriptors,
    wait_until,
)

FORK = WorkerMethod.FORK


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a descriptor behind."""
    before = descriptors()
    yield
    assert not descriptors().keys() - before.keys()


def started(script: Script, rank: int | None = None, method: WorkerMethod = FORK) -> RankProcess:
    """Start a process with a scripted core, as the only one or as a rank."""
    ours, theirs = Pipe()
    with theirs, contextlib.closing(MemoryFile()) as rendezvous:
        place = None if rank is None else RankOrder(rank, 4, rendezvous, (), 3600.0)
        log, to_close = StderrLog(), (ours,)
        order = CoreOrder(theirs, script, EngineConfig(), os.getpid(), log, to_close, place)
        return RankProcess(method, order, ours)


def end(process: RankProcess) -> None:
    """Kill, reap and close it."""
    process.send_signal(signal.SIGKILL)
    assert process.wait_for_end(HANG_SECONDS)
    process.exit_code()
    process.close()


def test_its_name_says_which_rank_it_is() -> None:
    for rank, words in ((None, "The engine core"), (2, "Rank 2 of the engine core")):
        process = started(Script(at_start="sleep"), rank)
        assert process.name == f"{words} (pid {process.pid}, started by fork)"
        end(process)


def test_a_signal_goes_to_the_process_and_to_no_other_that_has_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[int, int]] = []
    process = started(Script(at_start="sleep"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda *arguments: sent.append(arguments))
        process.send_signal(signal.SIGKILL)
        assert process.wait_for_end(HANG_SECONDS)
        process.send_signal(signal.SIGKILL)  # it is dead: nothing happens
        assert process.exit_code() == -signal.SIGKILL
        process.close()
        patched.setattr(signal, "pidfd_send_signal", lambda *arguments: sent.append(arguments))
        process.send_signal(signal.SIGKILL)  # it is reaped: its number may be another one's
    assert sent == []
    assert process.wait_for_end(0)
    process.close()  # once more does no harm


def test_without_descriptors_of_processes_it_is_known_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.delattr(os, "pidfd_open")
        process = started(Script(at_start="sleep"))
    assert len(process.watched) == 1
    end(process)


def test_a_process_that_a_signal_has_stopped_is_known() -> None:
    process = started(Script(at_start="sleep"))
    assert not process.is_stopped()
    process.send_signal(signal.SIGSTOP)
    wait_until(process.is_stopped, "the process is stopped")
    assert not process.wait_for_end(0)
    end(process)
    assert not process.is_stopped()


@pytest.mark.parametrize("rank", [None, 1])
def test_its_stacks_are_whole(rank: int | None, asleep: Milestone) -> None:
    process = started(Script(at_start="sleep", on_rank=rank or 0), rank)
    asleep.wait()
    stacks = process.stacks()
    assert "in sleep_for_ever" in stacks
    assert stacks.endswith("in run_core")
    end(process)
    assert process.stacks() == ""


def test_its_last_words_and_how_it_ended_are_known() -> None:
    process = started(Script(at_start="exit"))
    assert process.wait_for_end(HANG_SECONDS)
    assert process.exit_code() == 3
    assert process.last_words() == "the cache file is corrupt"
    end(process)


@pytest.mark.parametrize(("method", "code"), [(FORK, None), (WorkerMethod.FORKSERVER, 7)])
def test_a_fork_server_has_time_to_tell_of_a_death(
    method: WorkerMethod, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Told:
        """A process whose end is told after 20 seconds."""

        pid = os.getpid()

        def __init__(self) -> None:
            self.sentinel, self._writing = os.pipe()

        @property
        def exitcode(self) -> int | None:
            """What is known so far."""
            return 7 if clock[0] > 20 else None

        def close(self) -> None:
            """Give the descriptors back."""
            os.close(self.sentinel)
            os.close(self._writing)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(rank_process, "launch", lambda *_: Told())
    process = started(Script(), method=method)
    stand_in = types.SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(rank_process, "time", stand_in)
    assert process.exit_code() == code
    process.close()


def test_who_waits_in_the_middle_of_a_message_does_not_wait_for_ever() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        limit_waits(ours)
        with socket.socket(fileno=os.dup(ours.fileno())) as end_of_pipe:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                value = end_of_pipe.getsockopt(socket.SOL_SOCKET, option, 16)
                assert struct.unpack("ll", value) == (STUCK_SECONDS, 0)
