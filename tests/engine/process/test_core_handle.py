"""Several ranks of an engine: real processes that die, fail, hang or disagree; without a model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import WorkerMethod
from sample_engine.errors import EngineDeadError, RemoteError
from sample_engine.process.client import ProcessClient
from sample_engine.process.start_ranks import STEP_SECONDS_ENV
from tests.engine.support.process import (
    EACH_METHOD,
    Script,
    children,
    collect,
    descriptors,
    is_running,
    start,
    take_for_ever,
    tokens_of,
    wait_until_gone,
)

FORK = WorkerMethod.FORK
ENDLESS = SamplingParams(max_tokens=10**9)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a process or a descriptor behind."""
    processes, files = children(), descriptors()
    yield
    assert children() == processes
    left = {fd: what for fd, what in descriptors().items() if fd not in files}
    # What multiprocessing opens once, for its resource tracker and its fork server.
    left = {fd: what for fd, what in left.items() if not what.startswith(("pipe:", "/dev/urandom"))}
    assert not left


def ask_for_ever(client: ProcessClient) -> NoReturn:
    """Look for outputs again and again, as ``LLM`` does."""
    while True:
        client.get_outputs(0.2)


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
        client.get_outputs(60)
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
    client.get_outputs(60)
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
    wait_until_gone(pids[1], 60)
    with pytest.raises(EngineDeadError, match=rf"Rank 1 .*\(pid {pids[1]}, .*SIGKILL"):
        client.get_outputs(60)


def test_the_shutdown_of_an_engine_with_a_dead_rank_ends_the_others() -> None:
    client = start(FORK, Script(step_seconds=0.001), ranks=3)
    pids = client.info["rank_pids"]
    client.add_request("a", [1], ENDLESS)
    os.kill(pids[2], signal.SIGKILL)
    wait_until_gone(pids[2], 60)
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
            client.get_outputs(60)
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
        wait_until_gone(rank, 60)
