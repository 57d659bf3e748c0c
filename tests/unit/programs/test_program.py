"""A program run to its end, whatever that is, and nothing left of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.protocol import frames, messages
from pytest_cudafork.programs import program
from pytest_cudafork.programs.program import STACKS_ON_ABORT, ProgramRun, _no_message, run_program
from tests.support.descriptors import open_descriptors
from tests.support.isolation import is_gone
from tests.support.leaping_clock import LIMIT, leap_when
from tests.support.signs import wait_until


def run(code: str, *, timeout: float = 300, stdin: bytes = b"") -> ProgramRun:
    """Run Python code as a program."""
    env = {**os.environ, **STACKS_ON_ABORT}
    return run_program([sys.executable, "-S", "-c", code], env, timeout=timeout, stdin=stdin)


def running(sign: str) -> list[int]:
    """Return the programs with this in their command line, which have begun."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{name}/cmdline").read_text()
                if sign in command and "mark_process" not in command:
                    found.append(int(name))
    return found


def test_it_reads_writes_and_ends() -> None:
    ended = run("import sys; print(sys.stdin.read() * 2); sys.exit('why')", stdin=b"ab")
    assert (ended.stdout.data, ended.stderr.data) == (b"abab\n", b"why\n")
    assert (ended.ending.exitcode, ended.ending.timed_out, ended.left) == (1, False, ())


def test_it_is_given_this_environment_and_folder_and_no_more(tmp_path: object) -> None:
    code = "import os; print(sorted(os.environ), os.getcwd(), os.listdir('/proc/self/fd'))"
    ended = run_program([sys.executable, "-S", "-c", code], {"A": "1"}, cwd=str(tmp_path))
    # the interpreter itself may set the variable for its locale; the fourth is that of the listing
    told = ended.stdout.data.decode().replace(", 'LC_CTYPE'", "")
    assert told == f"['A'] {tmp_path} ['0', '1', '2', '3']\n"


def test_what_kills_it_is_told() -> None:
    assert run("import os; os.kill(os.getpid(), 9)").ending.exitcode == -9


def test_what_it_left_running_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that has left session, parent and group, and floods the output."""
    monkeypatch.setattr(program, "_GRACE_SECONDS", 0.1)
    ended = run(
        """
import os
begun, begins = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(2, str(os.getpid()).encode())
        os.write(begins, b'.')
        while True:
            os.write(1, b'x' * 65536)
    os._exit(0)
os.wait()
os.read(begun, 1)
"""
    )
    monkeypatch.undo()
    assert ended.ending.exitcode == 0
    [left] = ended.left
    assert str(left.pid).encode() == ended.stderr.data
    assert "setsid" in left.command
    assert is_gone(left.pid)


def test_what_ends_with_it_was_not_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_GRACE_SECONDS", 300.0)
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(0.05)"
    assert run(code).left == ()


def served(folder: Path, seconds: float, end: str) -> ProgramRun:
    """Run a program with a fork server that takes so long to end, and a process of it."""
    (folder / "slow.py").write_text(
        "import atexit, os, time\n"
        "def wait(me=os.getpid()):\n"
        f"    os.getpid() == me and time.sleep({seconds})\n"
        "atexit.register(wait)\n"
    )
    code = (
        "import multiprocessing, os, time\n"
        "context = multiprocessing.get_context('forkserver')\n"
        "context.set_forkserver_preload(['slow'])\n"
        f"{end}"
    )
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return run_program([sys.executable, "-S", "-c", code], env, timeout=300)


JOINED = "one = context.Process(target=print)\none.start()\none.join()\n"
LEFT = "context.Process(target=time.sleep, args=(10000,)).start()\nos._exit(0)\n"


def test_a_fork_server_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(program, "_FORK_SERVER_SECONDS", 300.0)
    ended = served(tmp_path, 0.3, JOINED)
    assert (ended.ending.exitcode, ended.stdout.data, ended.left) == (0, b"\n", ())


def test_one_that_does_not_end_was_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(program, "_FORK_SERVER_SECONDS", 0.1)
    [left] = served(tmp_path, 10000, JOINED).left
    assert "multiprocessing.forkserver" in left.command
    assert is_gone(left.pid)


def test_what_a_fork_server_has_forked_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(program, "_FORK_SERVER_SECONDS", float("inf"))
    assert len(served(tmp_path, 0, LEFT).left) == 2


def test_one_that_hangs_is_ended_with_the_stacks_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = [tmp_path / "parent", tmp_path / "child"]
    leap_when(monkeypatch, lambda: all(path.exists() for path in hang))
    monkeypatch.setattr(program, "_STACKS_SECONDS", 300.0)
    ended = run(
        f"""
import os, time
def parent_waits():
    open({str(hang[0])!r}, "w")
    os.wait()
def child_sleeps():
    open({str(hang[1])!r}, "w")
    time.sleep(10000)
pid = os.fork()
print(os.getpid(), pid, flush=True)
parent_waits() if pid else child_sleeps()
""",
        timeout=LIMIT,
    )
    assert ended.ending.timed_out
    stacks = ended.stderr.data.decode()
    assert "parent_waits" in stacks
    assert "child_sleeps" in stacks
    assert all(is_gone(int(pid)) for pid in ended.stdout.data.split()[-2:])


def test_an_interrupt_ends_it() -> None:
    """As Ctrl-C in the terminal does, which the program itself does not get."""
    sign = f"time.sleep(10000 + {os.getpid()})"

    def interrupt() -> None:
        with contextlib.suppress(AssertionError):  # then it is told below
            wait_until(lambda: running(sign), "the program")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(f"import time; {sign}")
    thread.join()
    assert running(sign) == []


def test_what_cannot_be_started_is_told_and_nothing_is_left() -> None:
    before = open_descriptors()
    with pytest.raises(FileNotFoundError), contextlib.closing(Caretaker()) as caretaker:
        run_program([sys.executable], {}, cwd="/no/such/folder", caretaker=caretaker)
    assert open_descriptors() <= before


def test_a_program_has_no_messages_to_send() -> None:
    with pytest.raises(frames.FrameError, match="a program sends no messages"):
        _no_message(messages.Done(), [])
