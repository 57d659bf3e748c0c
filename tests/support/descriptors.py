"""What descriptors this process has open, for tests that none is left, and how many it may open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


def open_descriptors() -> set[tuple[int, str]]:
    """Return the number of each and what it leads to, without the one that lists them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # that of the list
            continue
        found.add((int(name), target))
    return found


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open no more than so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(count + 1)]  # the lowest that are free
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
