"""Deaths of processes are told in the event loop, once; what has lived is let go of."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator

import pytest

from sample_engine.serve.deaths import deaths_watched


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def told(pids: Iterable[int], then: Callable[[], object]) -> list[str]:
    """What is told of processes while and after something happens."""
    found: list[str] = []

    async def watch() -> None:
        came = asyncio.Event()

        def tell() -> None:
            found.append("dead")
            came.set()

        with deaths_watched(pids, tell):
            await asyncio.sleep(0)
            then()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(came.wait(), 60 if then is not nothing else 0.05)
            await asyncio.sleep(0.05)  # for what must not be told again

    gc.collect()  # what earlier tests have left may be closed at any time
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(watch())
    assert len(os.listdir("/proc/self/fd")) == before
    return found


def nothing() -> None:
    """Let all live."""


def test_the_first_death_is_told_and_no_other() -> None:
    with sleeper() as one, sleeper() as other:

        def kill() -> None:
            one.kill()
            other.kill()

        assert told([one.pid, other.pid], kill) == ["dead"]


def test_one_that_is_dead_already_is_told_of() -> None:
    with sleeper() as other, subprocess.Popen(["true"]) as gone:
        gone.wait()
        assert told([other.pid, gone.pid], nothing) == ["dead"]


def test_of_those_that_live_and_of_this_one_nothing_is_told() -> None:
    with sleeper() as one:
        assert told([os.getpid(), one.pid], nothing) == []
    assert told([], nothing) == []


def test_a_kernel_without_descriptors_of_processes_watches_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with sleeper() as one:
        assert told([one.pid], nothing) == []
