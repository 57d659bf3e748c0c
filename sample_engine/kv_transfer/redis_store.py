"""Blocks on a Redis server, for engines on several hosts.

How much it keeps and what it drops is the server's business (``maxmemory`` and
``maxmemory-policy allkeys-lru``); a block that nobody stores or fetches for ``ttl_seconds`` goes by
itself. A call that takes longer than its time is ended by closing its connection.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sample_engine.errors import ConfigError
from sample_engine.kv_transfer.frame import HEADER_BYTES, header_of, why_not_whole
from sample_engine.kv_transfer.store import BlockStore, StoreError

__all__ = ["RedisStore"]

_PREFIX = "sample_engine:kv:"
_MOST_BYTES = 8 << 20  # in one command
_AGAIN_SECONDS = 0.05


class RedisStore(BlockStore):
    """Blocks on a server.

    ``timeout_seconds`` is for each command, which moves at most 8 MiB or one block. Raises
    :class:`ConfigError` where redis-py is missing, or refuses the URL, or the server the password;
    :class:`StoreError` where the server cannot be reached.
    """

    def __init__(self, url: str, timeout_seconds: float, ttl_seconds: int) -> None:
        super().__init__()
        self._redis = _redis_py()
        self._shown = _without_password(url)
        self._timeout = timeout_seconds
        self._ttl = ttl_seconds
        try:
            self._client = self._redis.Redis.from_url(
                url,
                socket_timeout=timeout_seconds,
                socket_connect_timeout=timeout_seconds,
                protocol=2,  # a server before 6.0 has no other
                retry=self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0),
            )
        except ValueError as error:
            raise ConfigError(f"kv_transfer_config: url={self._shown!r}: {error}.") from None
        try:
            with self._bounded("does not answer"):
                self._client.ping()
        except BaseException as error:
            self.close()
            if isinstance(error.__cause__, (self._redis.exceptions.AuthenticationError, TypeError)):
                raise ConfigError(f"kv_transfer_config: {error}.") from None
            raise

    def get(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        """Fetch blocks, up to the first that is not there as a whole."""
        for start, stop in _parts(rows):
            names = [_PREFIX + key for key in keys[start:stop]]
            with self._bounded("sends no block"):
                pipe = self._client.pipeline(transaction=False)
                pipe.mget(names)
                for name in names:
                    pipe.expire(name, self._ttl)
                frames = pipe.execute()[0]
            for index, frame in enumerate(frames, start):
                if not self._take(keys[index], frame, rows[index]):
                    return index
        return len(keys)

    def put(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        """Store blocks that are not there."""
        with self._bounded("takes no block"):
            pipe = self._client.pipeline(transaction=False)
            for key in keys:
                pipe.exists(_PREFIX + key)
            there = pipe.execute()
        missing = [index for index, found in enumerate(there) if not found]
        for start, stop in _parts([rows[index] for index in missing]):
            with self._bounded("takes no block"):
                pipe = self._client.pipeline(transaction=False)
                for index in missing[start:stop]:
                    frame = header_of(keys[index], rows[index]) + bytes(rows[index])
                    pipe.set(_PREFIX + keys[index], frame, ex=self._ttl)
                pipe.execute()
        return len(missing)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def describe(self) -> str:
        """The server, without its password."""
        return f"the Redis server {self._shown}"

    def _take(self, key: str, frame: bytes | None, row: memoryview) -> bool:
        if frame is None:
            return False
        block = memoryview(frame)[HEADER_BYTES:]
        why = why_not_whole(key, frame[:HEADER_BYTES], block)
        if why is None and len(block) == len(row):
            row[:] = block
            return True
        self.damaged += 1
        with self._bounded("does not answer"):
            self._client.delete(_PREFIX + key)  # so that a whole one takes its place
        return False

    @contextlib.contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        """End what takes too long, and tell of what fails.

        The time limit of a socket is for each piece that comes: a server that sends a byte now and
        then would not be ended by it.
        """
        over, done = threading.Event(), threading.Event()

        def watch() -> None:
            if done.wait(self._timeout):
                return
            over.set()
            self._client.connection_pool.disconnect()
            while not done.wait(_AGAIN_SECONDS):  # it may just have connected anew
                self._client.connection_pool.disconnect()

        watcher = threading.Thread(target=watch, name="KV blocks: time limit", daemon=True)
        watcher.start()
        expected = (self._redis.exceptions.RedisError, OSError, ValueError, TypeError)
        try:
            yield
        except Exception as error:
            slow = over.is_set() or isinstance(error, self._redis.exceptions.TimeoutError)
            if not slow and not isinstance(error, expected):
                raise
            why = f"it took more than {self._timeout:g} seconds" if slow else _first_line(error)
            raise StoreError(f"{self.describe()} {what}: {why}") from error
        finally:
            done.set()
            watcher.join()


def _redis_py() -> Any:
    try:
        redis = importlib.import_module("redis")
    except ImportError:
        raise ConfigError(
            "kv_transfer_config: RedisConnector needs redis-py: pip install redis."
        ) from None
    for name in ("retry", "backoff", "exceptions"):
        importlib.import_module(f"redis.{name}")
    return redis


def _parts(rows: Sequence[memoryview]) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of parts of rows that one command may move."""
    start = size = 0
    for index, row in enumerate(rows):
        if size and size + len(row) > _MOST_BYTES:
            yield start, index
            start, size = index, 0
        size += len(row)
    if size:
        yield start, len(rows)


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return text or type(error).__name__


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # it is refused; where in it a password would be is not known
        return f"{url.partition('://')[0]}://***"
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))
