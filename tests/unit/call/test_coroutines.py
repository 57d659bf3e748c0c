"""Tests of coroutine functions in a child."""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.call import coroutines
from pytest_cudafork.call.isolated import isolated
from tests.support.isolation import METHODS, is_gone


@pytest.mark.parametrize("method", METHODS)
def test_a_coroutine_function_is_awaited_as_ever_and_runs_elsewhere(method: Any) -> None:
    @isolated(method=method)
    async def work(number: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        return os.getpid(), number

    async def main() -> Any:
        return await asyncio.gather(work(1), work(2))

    (first, one), (second, two) = asyncio.run(main())
    assert (one, two) == (1, 2)
    assert len({first, second, os.getpid()}) == 3


def test_the_event_loop_goes_on_meanwhile() -> None:
    read, write = os.pipe()

    @isolated(method="fork", timeout=300)
    async def slow() -> int:
        return sum(len(os.read(read, 1)) for _ in range(4))  # ends when the loop has gone on

    async def tick() -> None:
        for _ in range(4):
            await asyncio.sleep(0.01)
            os.write(write, b".")

    async def main() -> int:
        ticking = asyncio.create_task(tick())
        try:
            return await slow()
        finally:
            await ticking

    assert asyncio.run(main()) == 4
    os.close(read)
    os.close(write)


def test_a_task_that_is_cancelled_ends_the_child(tmp_path: Any) -> None:
    told = tmp_path / "pid"

    @isolated(method="fork")
    async def hang() -> None:
        told.write_text(str(os.getpid()))
        await asyncio.sleep(1000)

    async def main() -> None:
        task = asyncio.create_task(hang())
        while not (told.exists() and told.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert is_gone(int(told.read_text()))


def test_an_exception_comes_home() -> None:
    @isolated(method="fork")
    async def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        asyncio.run(fail())


def test_who_runs_it_is_who_runs_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(number: int) -> int:
        return number + 1

    def run(main: Any) -> Any:
        return asyncio.run(main())

    async def run_sync(wait: Any) -> Any:
        return wait()

    assert coroutines.runner_of(os.getpid) is None
    assert coroutines.runner_of(work) is coroutines._run_asyncio
    trio = SimpleNamespace(
        run=run,
        lowlevel=SimpleNamespace(in_trio_run=lambda: True),
        to_thread=SimpleNamespace(run_sync=run_sync),
    )
    monkeypatch.setitem(sys.modules, "trio", trio)
    runner = coroutines.runner_of(work)
    assert runner is coroutines.run_trio
    assert runner(work, (1,), {}) == 2
    with pytest.raises(TypeError):
        runner(work, (), {})
    assert asyncio.run(isolated(method="fork")(work)(3)) == 4
