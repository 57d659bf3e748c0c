"""What becomes of a request whose client goes away before the answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request

__all__ = ["unless_gone"]

_Answer = TypeVar("_Answer")


async def unless_gone(request: Request, work: Awaitable[_Answer]) -> _Answer | None:
    """Return what a coroutine returns; None if the client goes away first, which ends it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
