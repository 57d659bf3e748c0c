"""Programs that run while a test looks at them from outside; each says when it is ready."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings, variables_for_program
from pytest_cudafork.settings import Level

HANGS_SECONDS = 900
"""After which a program that nobody ends does so by itself."""

SERVER = f"""\
import ctypes
import os
import sys
import threading


def touch():
    ctypes.CDLL("libcuda.so.1").cuInit(0)


def wait_for_requests():
    threading.Event().wait({HANGS_SECONDS})


if "touch" in sys.argv:
    touch()
pids = [os.getpid()]
if "fork" in sys.argv:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"x")
        wait_for_requests()
        os._exit(0)
    os.read(reader, 1)
    pids.append(child)
threading.Thread(target=wait_for_requests, name="requests", daemon=True).start()
print(*pids, flush=True)
wait_for_requests()
"""
"""A server that may touch CUDA, and fork a child; it says the numbers of both."""


class Running(NamedTuple):
    """A program that waits: its processes, and its ledger ("" where it is not watched)."""

    pids: tuple[int, ...]
    ledger: str


@contextlib.contextmanager
def running(
    folder: Path, *arguments: str, watched: bool, command: Sequence[str] = ()
) -> Iterator[Running]:
    """Run ``SERVER`` until the block ends, under a watch that refuses no fork or under none."""
    script = folder / "server.py"
    script.write_text(SERVER)
    env = dict(os.environ)
    ledger = ""
    if watched:
        ledger = str(folder / "server-ledger.jsonl")
        Ledger(ledger).create()
        settings = WatchSettings(ledger, "sm_90", Level.POISON.value, detailed=True)
        env.update(variables_for_program(settings, str(os.getpid()), env))
    words = [*(command or [sys.executable]), str(script), *arguments]
    server = subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert line, "the server ended before it was ready"
        yield Running(tuple(map(int, line.split())), ledger)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
