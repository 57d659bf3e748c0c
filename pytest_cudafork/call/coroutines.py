"""Coroutine functions in a child: who runs them there, and who waits for them here.

The child runs one with the library that runs the caller, asyncio or trio. The caller's event loop
goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

from pytest_cudafork.call.run import Call
from pytest_cudafork.compat.unpatched import inspect, threading

Runner = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def runner_of(fn: Callable[..., Any]) -> Runner | None:
    """Return what runs a coroutine function in a child of this process; None for others."""
    if not inspect.iscoroutinefunction(fn):
        return None
    return run_trio if _in_trio() else _run_asyncio


def _run_asyncio(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return asyncio.run(fn(*args, **kwargs))


def run_trio(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run it in a thread of its own: after a fork trio takes this one for the caller's."""
    trio: Any = importlib.import_module("trio")  # in a fresh interpreter it is new
    outcome: list[Any] = []

    async def main() -> Any:
        return await fn(*args, **kwargs)

    def run() -> None:
        try:
            outcome.append((trio.run(main), None))
        except BaseException as error:  # goes on in the thread that waits
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="trio of an isolated function")
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def _in_trio() -> bool:
    trio: Any = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


async def call_in_child(call: Call) -> Any:
    """Make a call whose child is waited for without holding up the event loop.

    The child is started in this thread, with which it dies. If the task is cancelled, the child is
    ended first.
    """
    __tracebackhide__ = True
    with call.sigchld.kept():
        call.start()
        if _in_trio():
            trio: Any = sys.modules["trio"]
            # a thread that has begun is waited for, cancelled or not; the time limit ends it
            ending = await trio.to_thread.run_sync(call.wait)
        else:
            waiting = asyncio.ensure_future(asyncio.to_thread(call.wait))
            try:
                ending = await asyncio.shield(waiting)
            except BaseException:
                call.kill()
                await waiting
                raise
    return call.result(ending)
