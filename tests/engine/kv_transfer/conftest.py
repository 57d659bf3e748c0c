"""Places for blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.support.kv_transfer import redis_server, shared_memory


@pytest.fixture
def shm() -> Iterator[str]:
    """A folder of its own in the shared memory, which must be empty again at the end."""
    with shared_memory() as path:
        yield path


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis server."""
    with redis_server() as url:
        yield url
