"""Several ranks of an engine: real processes that die, fail, hang or disagree; without a model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Pipe
from typing import Any, NoReturn

import pytest

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.errors import EngineDeadError, RemoteError
from sample_engine.process import core_handle
from sample_engine.process.client import ProcessClient
from sample_engine.process.messages import Abort, Failed, Outputs, ToFrontEnd, encode
from sample_engine.process.start_ranks import STEP_SECONDS_ENV
from tests.engine.support.process import (
    HANG_SECONDS,
    METHODS,
    Script,
    collect,
    is_running,
    nothing_left_behind,
    start,
    take_for_ever,
    tokens_of,
    wait_until_gone,
)

EACH_METHOD = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
FORK = WorkerMethod.FORK
ENDLESS = SamplingParams(max_tokens=10**9)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a process or a descriptor behind."""
    with nothing_left_behind():
        yield


def ask_for_ever(client: ProcessClient) -> NoReturn:
    """Look for outputs again and again, as ``LLM`` does."""
    while True:
        client.get_outputs(0.2)


class StandIn:
    """A rank without a process; a test speaks for it."""

    def __init__(self, rank: int) -> None:
        self.name, self.pid = f"Rank {rank}", 0
        self.connection, self.far_end = Pipe()
        self.watched: list[int] = []
        self.is_dead = False
        self.code = -int(signal.SIGKILL)

    def wait_for_end(self, seconds: float) -> bool:
        """Whether it is dead."""
        return self.is_dead

    def exit_code(self) -> int:
        """How it ended."""
        return self.code

    def last_words(self) -> str:
        """Its stderr."""
        return ""

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return False

    def send_signal(self, number: int) -> None:
        """It dies of any."""
        self.is_dead = True

    def end(self, code: int, last: ToFrontEnd | None = None) -> None:
        """Say something if there is anything to say, and end."""
        if last is not None:
            self.far_end.send_bytes(encode(last))
        self.far_end.close()
        self.is_dead, self.code = True, code

    def close(self) -> None:
        """Give the descriptors back."""
        self.connection.close()
        self.far_end.close()


class SlowToEnd(StandIn):
    """A rank that was killed: its pipe is closed, and its death is known a few looks later."""

    looks = 3

    def wait_for_end(self, seconds: float) -> bool:
        """Whether it is dead by now."""
        self.looks -= 1
        self.is_dead = self.looks < 0
        return self.is_dead


class EndsMeanwhile(StandIn):
    """A rank that misses another one when the front end knows already that something is wrong."""

    def wait_for_end(self, seconds: float) -> bool:
        """Whether it is dead: from the first look on."""
        if not self.is_dead:
            self.end(1, failed(0, "RankLostError"))
        return True


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """Two ranks in place of those that a :class:`CoreHandle` starts."""
    ranks = [StandIn(0), StandIn(1)]
    monkeypatch.setattr(core_handle, "start_ranks", lambda *_: ranks)
    return ranks


def unexpected(message: ToFrontEnd) -> NoReturn:
    """Nothing else is said."""
    raise AssertionError(message)


def failed(rank: int, error_type: str) -> Failed:
    return Failed("running", error_type, "what went wrong", "where", rank)


def test_what_ranks_say_while_the_cause_is_looked_for_is_taken(stand_ins: list[StandIn]) -> None:
    handle = core_handle.CoreHandle(FORK, EngineConfig(), Script())
    outputs, cause = Outputs([CoreOutput("a", (1,))]), failed(0, "ZeroDivisionError")
    stand_ins[1].far_end.send_bytes(encode(failed(1, "RankLostError")))
    taken: list[ToFrontEnd] = []
    causes: list[Failed] = []

    def take(message: ToFrontEnd) -> None:
        if isinstance(message, Failed):
            for late in (outputs, cause):
                stand_ins[0].far_end.send_bytes(encode(late))
            causes.append(handle.cause_of(message, taken.append))

    assert handle.receive(HANG_SECONDS, take) == 1
    assert taken == [outputs]
    assert causes == [cause]
    handle.give_up("has failed")


def test_all_that_ranks_have_said_is_taken_before_a_death_is_told(
    stand_ins: list[StandIn],
) -> None:
    handle = core_handle.CoreHandle(FORK, EngineConfig(), Script())
    stand_ins[0].far_end.close()
    stand_ins[0].is_dead = True
    stand_ins[1].far_end.send_bytes(encode(failed(1, "ZeroDivisionError")))
    taken: list[ToFrontEnd] = []
    assert handle.receive(HANG_SECONDS, taken.append) == 1
    assert taken == [failed(1, "ZeroDivisionError")]
    with pytest.raises(EngineDeadError, match="Rank 0 was killed by SIGKILL"):
        handle.receive(HANG_SECONDS, taken.append)


def test_what_was_said_is_taken_before_a_death_is_told_to_who_wants_to_say_something(
    stand_ins: list[StandIn],
) -> None:
    handle = core_handle.CoreHandle(FORK, EngineConfig(), Script())
    last: list[ToFrontEnd] = [
        Outputs([CoreOutput("a", (1,))]),
        failed(0, "ZeroDivisionError"),
    ]
    stand_ins[0].far_end.send_bytes(encode(last[0]))
    stand_ins[0].end(1, last[1])
    for quiet in (False, True):
        handle.send(Abort(["a"]), quiet=quiet)
    taken: list[ToFrontEnd] = []
    assert handle.receive(HANG_SECONDS, taken.append) == 2
    assert taken == last
    with pytest.raises(EngineDeadError, match="Rank 0 ended by itself with exit code 1"):
        handle.send(Abort(["a"]))


@pytest.mark.parametrize("first", [StandIn, EndsMeanwhile])
def test_the_rank_that_was_killed_is_named_though_its_death_is_known_last(
    first: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [first(0), StandIn(1), SlowToEnd(2)]
    monkeypatch.setattr(core_handle, "start_ranks", lambda *_: ranks)
    handle = core_handle.CoreHandle(FORK, EngineConfig(), Script())
    ranks[2].far_end.close()
    if first is StandIn:
        ranks[0].end(1, failed(0, "RankLostError"))
    ranks[1].end(0)
    causes: list[Failed] = []

    def take(message: ToFrontEnd) -> None:
        assert isinstance(message, Failed)
        causes.append(handle.cause_of(message, unexpected))

    with pytest.raises(EngineDeadError, match=r"^Rank 2 was killed by SIGKILL[^\n]*$"):
        handle.receive(HANG_SECONDS, take)
    assert causes == []


def test_a_rank_that_ends_with_0_is_named_where_no_other_one_is_missed(
    stand_ins: list[StandIn],
) -> None:
    handle = core_handle.CoreHandle(FORK, EngineConfig(), Script())
    stand_ins[1].end(0)
    with pytest.raises(EngineDeadError, match=r"^Rank 1 ended by itself with exit code 0\.$"):
        handle.cause_of(failed(0, "RankLostError"), unexpected)


@pytest.mark.parametrize("timeout", [None, HANG_SECONDS])
def test_ctrl_c_just_before_a_sleep_is_heard_soon(
    timeout: float | None, stand_ins: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float | None] = []

    def sleep(objects: Sequence[Any], seconds: float | None = None) -> list[Any]:
        sleeps.append(seconds)
        if len(sleeps) < 3:
            return []  # the signal had come before the sleep, which has slept to its end
        raise KeyboardInterrupt  # as the signal's handler does between two sleeps

    monkeypatch.setattr(core_handle, "wait", sleep)
    handle = core_handle.CoreHandle(FORK, EngineConfig(), Script())
    with pytest.raises(KeyboardInterrupt):
        handle.receive(timeout, lambda _: None)
    assert sleeps == [1.0, 1.0, 1.0]
    handle.give_up("has failed")


def test_a_wait_ends_when_its_time_is_up(stand_ins: list[StandIn]) -> None:
    handle = core_handle.CoreHandle(FORK, EngineConfig(), Script())
    assert handle.receive(0, lambda _: None) == 0
    handle.give_up("has failed")


@EACH_METHOD
def test_ranks_are_started_alike_hear_the_same_and_end_together(method: WorkerMethod) -> None:
    client = start(method, ranks=3)
    try:
        pids = client.info["rank_pids"]
        assert len({*pids, os.getpid()}) == 4
        assert client.info["core_pid"] == pids[0]
        client.add_request("a", [1, 2, 3], SamplingParams(max_tokens=7))
        client.add_request("b", [4], SamplingParams(max_tokens=2))
        client.add_request("refused", [], SamplingParams(max_tokens=2))  # no other rank hears of it
        found = collect(client, 3)
        assert tokens_of(found["a"]) == [1, 2, 3, 1, 2, 3, 1]
        assert tokens_of(found["b"]) == [4, 4]
        assert "empty" in str(found["refused"][0].error)
        client.add_request("c", [5], ENDLESS)
        client.get_outputs(HANG_SECONDS)
        client.abort(["c"])
        assert client.metrics()["aborted"] == ["c"]
    finally:
        client.shutdown()
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_is_killed_ends_the_engine_and_is_named(rank: int) -> None:
    client = start(FORK, Script(step_seconds=0.001), ranks=3)
    pids = client.info["rank_pids"]
    client.add_request("a", [1], ENDLESS)
    client.get_outputs(HANG_SECONDS)
    os.kill(pids[rank], signal.SIGKILL)
    with pytest.raises(EngineDeadError) as caught:
        take_for_ever(client)
    words = f"Rank {rank} of the engine core (pid {pids[rank]}, started by fork) was killed by"
    assert str(caught.value).startswith(f"{words} SIGKILL")
    assert not any(is_running(pid) for pid in pids)
    with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
        client.add_request("b", [1], ENDLESS)


def test_a_rank_that_is_killed_between_two_calls_is_named_by_the_next() -> None:
    client = start(FORK, ranks=2)
    pids = client.info["rank_pids"]
    os.kill(pids[1], signal.SIGKILL)
    wait_until_gone(pids[1])
    with pytest.raises(EngineDeadError, match=rf"Rank 1 .*\(pid {pids[1]}, .*SIGKILL"):
        client.get_outputs(HANG_SECONDS)


def test_the_shutdown_of_an_engine_with_a_dead_rank_ends_the_others() -> None:
    client = start(FORK, Script(step_seconds=0.001), ranks=3)
    pids = client.info["rank_pids"]
    client.add_request("a", [1], ENDLESS)
    os.kill(pids[2], signal.SIGKILL)
    wait_until_gone(pids[2])
    client.shutdown()
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_a_rank_comes_with_its_traceback(rank: int) -> None:
    client = start(FORK, Script(at_step="error", on_rank=rank), ranks=2)
    client.add_request("a", [1], ENDLESS)
    with pytest.raises(RemoteError) as caught:
        take_for_ever(client)
    text = str(caught.value)
    assert text.startswith(f"Rank {rank} of the engine core (pid {client.info['rank_pids'][rank]}")
    assert "ZeroDivisionError: nothing is left to divide by" in text
    assert "in _error" in text


def test_a_rank_that_cannot_start_is_the_error_of_the_start() -> None:
    with pytest.raises(RemoteError, match=r"Rank 1 .* failed while starting: ZeroDivisionError"):
        start(FORK, Script(at_start="error", on_rank=1), ranks=2)
    with pytest.raises(EngineDeadError, match=r"Rank 1 .* with exit code 3") as late:
        start(FORK, Script(at_start="exit", on_rank=1), ranks=2)
    assert "the cache file is corrupt" in str(late.value)


def test_a_crash_of_a_rank_shows_its_stack() -> None:
    client = start(FORK, Script(at_step="crash", on_rank=1), ranks=2)
    client.add_request("a", [1], ENDLESS)
    with pytest.raises(EngineDeadError, match=r"Rank 1 .*was killed by SIGSEGV") as caught:
        take_for_ever(client)
    assert "in _crash" in str(caught.value)


def test_a_rank_that_does_not_start_in_time_is_named_with_its_stacks() -> None:
    with pytest.raises(EngineDeadError, match="was not ready after 2 seconds") as caught:
        start(FORK, Script(at_start="sleep", on_rank=1), start_seconds=2, ranks=2)
    assert "Rank 1 of the engine core" in str(caught.value)


def test_ranks_that_do_not_compute_the_same_are_an_error() -> None:
    client = start(FORK, Script(at_step="differ", on_rank=1), ranks=2)
    client.add_request("a", [1], ENDLESS)
    with pytest.raises(RemoteError, match=r"Rank 1 .*came to something else than that of rank 0"):
        take_for_ever(client)


def test_a_rank_in_a_step_without_end_is_named_with_all_stacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STEP_SECONDS_ENV, "2")
    client = start(FORK, Script(at_step="sleep", on_rank=1), ranks=2)
    client.add_request("a", [1], SamplingParams(max_tokens=3))
    pids = client.info["rank_pids"]
    with pytest.raises(EngineDeadError, match="wait for each other") as caught:
        take_for_ever(client)
    assert f"(pid {pids[1]}, started by fork): A step has not ended for 2 seconds" in str(
        caught.value
    )
    assert "in _sleep" in str(caught.value)
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_a_signal_has_stopped_is_named(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STEP_SECONDS_ENV, "1")
    client = start(FORK, ranks=2)  # idle: nobody is in a step
    pids = client.info["rank_pids"]
    os.kill(pids[rank], signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match="wait for each other") as caught:
        ask_for_ever(client)
    first = str(caught.value).partition("\n")[0]
    assert (
        f"Rank {rank} of the engine core (pid {pids[rank]}, started by fork) was stopped" in first
    )
    assert not any(is_running(pid) for pid in pids)


def test_a_forked_child_leaves_the_ranks_alone() -> None:
    client = start(FORK, ranks=2)
    try:
        pid = os.fork()
        if pid == 0:
            try:
                client.shutdown()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        client.add_request("a", [1, 2], SamplingParams(max_tokens=3))
        assert tokens_of(collect(client)["a"]) == [1, 2, 1]
    finally:
        client.shutdown()


def test_a_front_end_that_is_killed_takes_all_ranks_with_it() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client = start(FORK, Script(step_seconds=0.001), ranks=2)
            client.add_request("a", [1], ENDLESS)
            client.get_outputs(HANG_SECONDS)
            os.write(write, " ".join(map(str, client.info["rank_pids"])).encode() + b"\n")
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as file:
        ranks = [int(each) for each in file.readline().split()]
    os.waitpid(pid, 0)
    assert len(ranks) == 2
    for rank in ranks:
        wait_until_gone(rank)
