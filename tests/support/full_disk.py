"""A disk that is full, without a file system of its own: files of this process cannot grow."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """Let writes fail, or take a part only, beyond so many bytes of any file.

    The kernel says "File too large", where a full disk has "No space left on device".
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
