"""Notices the death of an engine's process while nobody asks the engine for anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

__all__ = ["deaths_watched"]


@contextlib.contextmanager
def deaths_watched(pids: Iterable[int], tell: Callable[[], object]) -> Iterator[None]:
    """Call ``tell`` in the running event loop, once, when one of these processes has died.

    Not watched are this process, which an engine may run in, and any on a kernel that has no
    descriptors of processes.
    """
    loop = asyncio.get_running_loop()
    watched: list[int] = []
    told = False

    def died() -> None:
        nonlocal told
        for fd in watched:
            loop.remove_reader(fd)
        if not told:  # two may die at once
            told = True
            tell()

    try:
        for pid in pids:
            if pid == os.getpid():
                continue
            try:
                watched.append(os.pidfd_open(pid))
            except ProcessLookupError:  # already
                loop.call_soon(died)
                break
            except (AttributeError, OSError):
                continue
            loop.add_reader(watched[-1], died)
        yield
    finally:
        for fd in watched:
            loop.remove_reader(fd)
            os.close(fd)
