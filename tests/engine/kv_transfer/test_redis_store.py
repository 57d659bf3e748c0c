"""Blocks on a real Redis server, and servers that are away, slow, full, or something else."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sample_engine.errors import ConfigError
from sample_engine.kv_transfer import redis_store
from sample_engine.kv_transfer.redis_store import RedisStore
from sample_engine.kv_transfer.store import StoreError
from tests.engine.support import kv_transfer as support
from tests.engine.support.kv_transfer import (
    SECONDS,
    needs_redis,
    redis_on_a_socket,
    redis_server,
)

pytestmark = needs_redis

SIZE = 1000
SHORT = 0.2


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    """The store of one engine."""
    with contextlib.closing(RedisStore(redis_url, SECONDS, 100)) as made:
        yield made


@pytest.fixture
def name() -> str:
    """Begins the keys of one test: the server keeps those of others."""
    return uuid.uuid4().hex


def block(number: int) -> memoryview:
    return memoryview(bytes([number]) * SIZE)


def put(store: RedisStore, name: str, *numbers: int) -> int:
    keys = [f"{name}-{number}" for number in numbers]
    return store.put(keys, [block(number) for number in numbers])


def got(store: RedisStore, name: str, *numbers: int) -> list[int]:
    rows = [bytearray(SIZE) for _ in numbers]
    keys = [f"{name}-{number}" for number in numbers]
    count = store.get(keys, [memoryview(row) for row in rows])
    for number, row in zip(numbers[:count], rows, strict=False):
        assert row == block(number)
    return list(numbers[:count])


def test_what_one_stores_the_other_fetches(store: RedisStore, redis_url: str, name: str) -> None:
    assert put(store, name, 1, 2, 3) == 3
    with contextlib.closing(RedisStore(redis_url, SECONDS, 100)) as other:
        assert put(other, name, 3, 4) == 1
        assert got(other, name, 1, 2, 3, 4, 5) == [1, 2, 3, 4]
    assert got(store, name, 5, 1) == []
    assert store.metrics() == {"damaged_blocks": 0}


def test_many_bytes_go_in_parts(
    store: RedisStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "_MOST_BYTES", 2 * SIZE + 1)
    numbers = range(7)
    assert put(store, name, *numbers) == 7
    assert got(store, name, *numbers, 99) == list(numbers)


def test_a_block_goes_by_itself_after_a_time_that_begins_anew_when_it_is_fetched(
    store: RedisStore, name: str
) -> None:
    put(store, name, 1)
    key = f"sample_engine:kv:{name}-1"
    assert 0 < store._client.ttl(key) <= 100
    store._client.expire(key, 1000)
    assert got(store, name, 1) == [1]
    assert store._client.ttl(key) <= 100


@pytest.mark.parametrize("value", [b"", b"SEKV", b"x" * (SIZE + 40), b"other"])
def test_another_programs_or_versions_value_is_no_block(
    store: RedisStore, name: str, value: bytes
) -> None:
    put(store, name, 1, 2)
    store._client.set(f"sample_engine:kv:{name}-2", value)
    assert got(store, name, 1, 2) == [1]
    assert store.damaged == 1
    assert put(store, name, 2) == 1
    assert got(store, name, 1, 2) == [1, 2]


def test_a_value_of_another_kind_is_told(store: RedisStore, name: str) -> None:
    store._client.rpush(f"sample_engine:kv:{name}-1", "a list")
    assert got(store, name, 1) == []


def test_a_full_server_is_told_and_still_has_what_it_has(name: str) -> None:
    large = [memoryview(bytes(1 << 20))] * 10
    keys = [f"{name}-large-{number}" for number in range(10)]
    with (
        redis_server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as url,
        contextlib.closing(RedisStore(url, SECONDS, 100)) as store,
    ):
        assert put(store, name, 1) == 1
        with pytest.raises(StoreError, match=r"takes no block: .*maxmemory"):
            store.put(keys, large)
        assert got(store, name, 1) == [1]


def test_a_server_that_ends_is_told_and_one_that_comes_back_is_used(
    tmp_path: Path, name: str
) -> None:
    with redis_on_a_socket(tmp_path) as url:
        store = RedisStore(url, SECONDS, 100)
        put(store, name, 1)
    with contextlib.closing(store):
        for call in (got, put):
            with pytest.raises(StoreError, match="the Redis server unix://"):
                call(store, name, 1)
        with redis_on_a_socket(tmp_path):
            assert put(store, name, 1) == 1
            assert got(store, name, 1) == [1]


def test_a_server_of_others_on_a_port_that_was_free_a_moment_ago_is_not_taken_for_ones_own(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(redis_url.rpartition(":")[2].partition("/")[0])
    ports = iter([taken, taken, support.free_port()])
    monkeypatch.setattr(support, "free_port", lambda: next(ports))
    with redis_server("--requirepass", "secret") as url:
        assert f":{taken}/" not in url
    assert next(ports, None) is None


def test_nobody_there_is_told() -> None:
    with socket.socket() as nobody:  # has a port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        with pytest.raises(StoreError, match=r"does not answer: .*refused"):
            RedisStore(url, SECONDS, 100)


def test_passwords_are_asked_for_and_never_shown(name: str) -> None:
    with redis_server("--requirepass", "secret") as url:
        right = url.replace("//", "//:secret@")
        with contextlib.closing(RedisStore(right, SECONDS, 100)) as store:
            assert put(store, name, 1) == 1
            assert "secret" not in store.describe()
        with pytest.raises(ConfigError, match="invalid username-password pair") as caught:
            RedisStore(right.replace("secret", "guess-42"), SECONDS, 100)
        assert "guess-42" not in str(caught.value)
        with pytest.raises(ConfigError, match="Authentication required"):
            RedisStore(url, SECONDS, 100)


@pytest.mark.parametrize(
    "rest",
    ["127.0.0.1:port/0", "127.0.0.1:1/0?colour=red", "[::1", "::1]:5", "[v]", "h:99999", "[]"],
)
def test_a_url_that_is_none_is_a_wrong_setting(rest: str) -> None:
    for url in (f"redis://{rest}", f"redis://user:secret@{rest}"):
        with pytest.raises(ConfigError, match="kv_transfer_config: ") as refused:
            RedisStore(url, SECONDS, 100)
        assert "secret" not in str(refused.value)


def test_without_redis_py_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match="pip install redis"):
        RedisStore("redis://127.0.0.1:1/0", 1.0, 100)


@contextlib.contextmanager
def peer(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Something that listens where a server should be, and what it does with who connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def dripping(connection: socket.socket) -> None:
    """Send a byte of an answer that has no end, ever again, before any time limit of a socket."""
    connection.settimeout(SHORT / 4)
    connection.sendall(b"+")
    while True:
        connection.sendall(b"P")
        with contextlib.suppress(TimeoutError):
            if not connection.recv(4096):
                return


@pytest.mark.parametrize("talk", [silent, dripping])
def test_a_slow_server_is_not_waited_for(talk: Callable[[socket.socket], None]) -> None:
    with peer(talk) as url, pytest.raises(StoreError, match=r"it took more than 0.2 seconds"):
        RedisStore(url, SHORT, 100)


def test_something_else_that_listens_is_told() -> None:
    def web(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with peer(web) as url, pytest.raises(StoreError, match="does not answer: "):
        RedisStore(url, SECONDS, 100)
