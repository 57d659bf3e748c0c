"""The processes behind calls in a child: nothing is left, nothing else is hit."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from pytest_cudafork.call.run import Call, new_server
from pytest_cudafork.errors import ChildCrashed, ChildError, ChildTimeout
from pytest_cudafork.fixtures import RunInChild
from pytest_cudafork.process import launch
from tests.support.descriptors import open_descriptors
from tests.support.isolation import is_gone
from tests.support.sessions import run_python


def test_a_late_answer_of_the_fork_server_answers_no_other_request(tmp_path: Path) -> None:
    told = run_python(
        """
import os, signal
from pytest_cudafork.call.run import Call, new_server
from pytest_cudafork.process.server_process import ServerProcess

server = new_server()
receive = ServerProcess._receive

def run():
    return Call("forkserver", int, timeout=300, server=server).run()

def alarm(*args):
    os.kill(server.pid, signal.SIGCONT)
    raise TimeoutError("alarm")

def receive_late(*args):
    # it was asked, and its answer is waited for
    ServerProcess._receive = receive
    signal.raise_signal(signal.SIGALRM)

run()
signal.signal(signal.SIGALRM, alarm)
os.kill(server.pid, signal.SIGSTOP)
ServerProcess._receive = receive_late
try:
    run()
except TimeoutError:
    print("interrupted", run(), run())
server.close()
""",
        tmp_path,
    )
    assert told == "interrupted 0 0\n"


@pytest.fixture(params=["run_forked", "run_spawned", "run_forkserver"])
def run(request: pytest.FixtureRequest) -> RunInChild:
    runner: RunInChild = request.getfixturevalue(request.param)
    return runner


def test_nothing_is_left_behind(
    run: RunInChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    run(int)  # starts the fork server
    gc.collect()
    before = open_descriptors()
    others = set(_children())  # an earlier test may have left some, which end meanwhile
    for _ in range(3):
        run(int)
    with pytest.raises(ChildCrashed):
        run(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(ChildTimeout):
        run(lambda: time.sleep(1000), timeout=1)
    gc.collect()
    assert open_descriptors() <= before
    assert list(tmp_path.iterdir()) == []
    left = {pid: command for pid, command in _children().items() if pid not in others}
    assert left == {}


def _children() -> dict[str, str]:
    """Return the children of this process: the process id and the command line of each."""
    pids: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            pids += (task / "children").read_text().split()
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # a child that has ended meanwhile
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text()
    return found


def test_a_grandchild_that_escapes_from_the_function_says_nothing(run: RunInChild) -> None:
    def forks_and_raises() -> str:
        if os.fork() == 0:
            raise RuntimeError("this must not be taken for the child's own outcome")
        os.wait()
        return "mine"

    assert run(forks_and_raises) == "mine"


def test_the_garbage_of_a_stray_descriptor_is_told_as_such(run: RunInChild) -> None:
    not_its_own = {target for _, target in open_descriptors()}  # of other tests, which go on

    def writes_everywhere() -> None:
        for fd, target in open_descriptors():
            if "socket" in target and target not in not_its_own:
                with contextlib.suppress(BrokenPipeError):
                    os.write(fd, b"this is no message at all")

    with pytest.raises(ChildError, match="no message"):
        run(writes_everywhere)


def test_the_fork_server_starts_again_after_its_death() -> None:
    server = new_server()
    try:
        Call("forkserver", int, timeout=300, server=server).run()
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="the fork server was killed by SIGKILL"):
            assert Call("forkserver", int, ("7",), timeout=300, server=server).run() == 7
        assert server.pid not in (None, first)
    finally:
        server.close()
    assert server.pid is None


def test_the_fork_server_and_its_children_die_with_their_parent(tmp_path: Path) -> None:
    script = """
import os, signal, sys, threading, time
from pytest_cudafork.call.run import Call, new_server
server = new_server()
Call("forkserver", int, timeout=300, server=server).run()
def told(event, pid):
    print(server.pid, pid, flush=True)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
Call("forkserver", time.sleep, (1000,), timeout=1000, server=server, observer=told).run()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_a_keyboard_interrupt_here_ends_the_child() -> None:
    pids = []

    def told(event: str, pid: int) -> None:
        pids.append(pid)
        if event == "started":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        Call("fork", time.sleep, (1000,), timeout=1000, observer=told).run()
    assert len(set(pids)) == 1
    assert is_gone(pids[0])


def test_a_keyboard_interrupt_before_anybody_watches_ends_the_child() -> None:
    pids = []

    def told(event: str, pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    server = new_server()
    before = open_descriptors()
    try:
        with pytest.raises(KeyboardInterrupt):
            Call("fork", time.sleep, (1000,), timeout=1000, observer=told).run()
        with pytest.raises(ChildProcessError):
            os.waitpid(pids[0], os.WNOHANG)
        assert open_descriptors() <= before
        for method in ("spawn", "forkserver"):
            with pytest.raises(KeyboardInterrupt):
                Call(method, time.sleep, (1000,), timeout=1000, server=server, observer=told).run()
        assert [is_gone(pid) for pid in pids] == [True] * 3
    finally:
        server.close()


def test_a_kernel_without_pidfds_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "pidfd", lambda pid: -1)
    assert Call("fork", int, ("3",), timeout=300).run() == 3
    with pytest.raises(ChildTimeout):
        Call("fork", time.sleep, (60,), timeout=0.5).run()


@pytest.mark.parametrize(
    ("method", "timeout", "words"),
    [("thread", 1.0, "'thread' is no start method"), ("fork", 0.0, "above 0 seconds")],
)
def test_wrong_arguments_are_named(method: str, timeout: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Call(method, int, timeout=timeout).run()
