"""Tests of starting children by fork and as a fresh interpreter."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.process import child, launch, supervision
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.forking import short_stack
from pytest_cudafork.process.protocol import frames, messages
from tests.support.descriptors import open_descriptors
from tests.support.signal_at import SignalAt

HERE = "tests.unit.process.test_launch"


def tell_world(task: child.Task) -> int:
    """Tell what a fresh interpreter finds; the job of these tests."""
    text = f"{task.data} {os.environ.get('LAUNCH_TEST')} {sys.argv} {os.getcwd()}"
    task.the_channel().send(messages.InternalError(text))
    return 0


def all_of(running: launch.Running) -> tuple[list[messages.Message], supervision.Ending]:
    said: list[messages.Message] = []

    def take(message: messages.Message, fds: list[int]) -> supervision.Said:
        said.append(message)
        return supervision.Said.MORE

    ending = supervision.Supervisor(running).watch(take, 300.0)
    assert ending is not None
    return said, ending


def test_a_fork_runs_a_body_that_cannot_reach_other_processes() -> None:
    ours, theirs = socket.socketpair()
    order: list[str] = []

    def body(channel: Channel, stacks_fd: int) -> NoReturn:
        written = os.write(ours.fileno(), b"to nobody")
        channel.send(messages.InternalError(f"{order} {written} {os.fstat(stacks_fd).st_size}"))
        os._exit(3)

    running = launch.start_fork(body, [ours.fileno()], lambda: order.append("first"))
    said, ending = all_of(running)
    assert said == [messages.InternalError("['first'] 9 0")]
    assert ending.exitcode == 3
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(10)
    ours.close()
    theirs.close()


def test_a_body_that_raises_ends_its_process() -> None:
    def body(channel: Channel, stacks_fd: int) -> NoReturn:
        os.close(2)
        raise ValueError("nobody catches this")

    _, ending = all_of(launch.start_fork(body))
    assert ending.exitcode != 0


def test_a_fresh_interpreter_has_the_world_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["a", "b"])
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path, Path("ignored")])
    monkeypatch.chdir(tmp_path)
    running = launch.start_spawn(f"{HERE}:tell_world", {"x": 1}, {"LAUNCH_TEST": "set"})
    said, ending = all_of(running)
    text = f"{{'x': 1}} set ['a', 'b'] {tmp_path}"
    assert said == [messages.InternalError(text), messages.Done()]
    assert ending.exitcode == 0


def test_the_command_of_an_interpreter_calls_a_function_with_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "told.py").write_text("import gc, sys\ndef f(*n): print(n, gc.isenabled())")
    monkeypatch.syspath_prepend(tmp_path)
    for numbers in [(7,), (7, -1)]:
        command = launch.interpreter_command("told:f", numbers)
        assert subprocess.check_output(command, text=True) == f"{numbers} False\n"


@pytest.mark.parametrize("opened", [True, False])
def test_a_program_begins_when_its_gate_is_opened(opened: bool, tmp_path: Path) -> None:
    sign = tmp_path / "begun"
    gate = launch.Gate()
    command = ["/bin/sh", "-c", f"echo $0 > {sign}; exit 3", "$A"]
    running = launch.start_program(
        command, {"A": "1"}, gate, str(tmp_path), stdout=subprocess.DEVNULL, stderr=1
    )
    assert not sign.exists()
    if opened:
        gate.open()
    gate.close()
    said, ending = all_of(running)
    assert (said, ending.exitcode) == ([], 3 if opened else 1)
    assert sign.exists() == opened


def test_a_start_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise RuntimeError("the guard refuses")

    before = open_descriptors()
    monkeypatch.setattr(short_stack, "fork", refuse)
    with pytest.raises(RuntimeError, match="the guard refuses"):
        launch.start_fork(lambda channel, stacks_fd: os._exit(0))
    assert open_descriptors() <= before


class Told(Caretaker):
    """A caretaker that keeps what it is told, and has a descriptor of its own."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fd = fd
        self.told: list[tuple[str, bytes, int]] = []

    def begun(self, cookie: bytes, pid: int) -> None:
        self.told.append(("begun", cookie, pid))

    def over(self, cookie: bytes) -> None:
        self.told.append(("over", cookie, 0))

    def descriptors(self) -> list[int]:
        return [self.fd] if self.told else []


def test_a_caretaker_hears_of_a_child_before_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        heard.append([what for what, _, _ in caretaker.told])
        raise OSError("no process left")

    heard: list[list[str]] = []
    caretaker, gate = Told(-1), launch.Gate()
    monkeypatch.setattr(short_stack, "fork", refuse)
    monkeypatch.setattr(launch, "subprocess", types.SimpleNamespace(Popen=refuse, DEVNULL=-3))
    starts: list[Callable[[], object]] = [
        lambda: launch.start_fork(lambda channel, fd: os._exit(0), caretaker=caretaker),
        lambda: launch.start_spawn(f"{HERE}:tell_world", {}, caretaker=caretaker),
        lambda: launch.start_program(["true"], {}, gate, stdout=1, stderr=2, caretaker=caretaker),
    ]
    for start in starts:
        with pytest.raises(OSError, match="no process left"):
            start()
        (began, cookie, pid), over = caretaker.told
        assert (began, pid) == ("begun", 0)
        assert over == ("over", cookie, 0)  # and no more of one that never was
        caretaker.told.clear()
    gate.close()
    assert heard == [["begun"]] * 3


def test_a_caretaker_knows_its_child_and_the_child_cannot_reach_it() -> None:
    ours, theirs = socket.socketpair()
    caretaker = Told(ours.fileno())

    def body(channel: Channel, stacks_fd: int) -> NoReturn:
        os.write(caretaker.fd, b"to nobody")
        os._exit(0)

    running = launch.start_fork(body, caretaker=caretaker)
    told = [("begun", running.cookie, 0), ("begun", running.cookie, running.pid)]
    assert caretaker.told == told
    all_of(running)
    assert caretaker.told == [*told, ("over", running.cookie, 0)]
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(10)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("marked", [True, False])
def test_an_interrupt_during_the_fork_ends_the_child(
    marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is held back while there are two processes, and then nobody has the child yet."""
    forked: list[int] = []
    begun, begins = os.pipe()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def fork_and_interrupt() -> int:
        pid = os.fork()
        if pid:
            forked.append(pid)
            if marked:
                assert os.read(begun, 1)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return pid

    def body(channel: Channel, stacks_fd: int) -> NoReturn:
        # As each body begins. A process of the parent's group whose own parent is outside takes
        # the group with it, if one of its processes is stopped: the kernel sends SIGHUP to all.
        os.setpgid(0, 0)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.alarm(60)
            signal.pause()
        os.write(begins, str(pid).encode())
        signal.pause()
        os._exit(1)

    before = open_descriptors()
    monkeypatch.setattr(short_stack, "fork", fork_and_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch.start_fork(body)
    finally:
        signal.signal(signal.SIGINT, handler)
    (pid,) = forked
    try:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    assert open_descriptors() <= before
    os.close(begins)
    rest = os.read(begun, 20)  # the first digit was read
    os.close(begun)
    assert not marked or rest


def test_how_one_ended_that_somebody_else_has_reaped_is_not_known() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    os.waitpid(pid, 0)
    assert launch.reap(pid) is None
    with subprocess.Popen(["true"]) as process:
        os.waitpid(process.pid, 0)
        assert launch.wait_for_program(process) is None
        assert process.returncode == 0  # Popen does not wait for it any more


def test_the_end_of_a_program_is_seen_wherever_ctrl_c_comes_while_somebody_asks() -> None:
    for number in itertools.count(1):
        program = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.exit(3)"])
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        at = SignalAt(number, signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt), at:
            launch.has_ended(program, 60)
        assert launch.has_ended(program), f"at {number}"
        assert program.returncode == 3, f"at {number}"
        if not at.sent:
            break
    assert number > 3


def test_a_program_that_runs_has_not_ended_and_one_that_was_killed_says_by_what() -> None:
    program = subprocess.Popen(["sleep", "600"])
    began = time.monotonic()
    assert not launch.has_ended(program)
    assert not launch.has_ended(program, 0.2)
    assert 0.2 <= time.monotonic() - began < 60
    program.kill()
    assert launch.has_ended(program, 60)
    assert program.returncode == -signal.SIGKILL
    assert launch.has_ended(program)


def test_one_that_others_have_reaped_has_ended() -> None:
    program = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.exit(3)"])
    os.waitpid(program.pid, 0)
    assert launch.has_ended(program)
    assert program.returncode == 0


def test_an_ended_child_is_known_by_its_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(channel: Channel, stacks_fd: int) -> NoReturn:
        channel.receive()
        os._exit(0)

    running = launch.start_fork(body)
    assert not running.has_ended
    os.kill(running.pid, signal.SIGKILL)
    assert running.reap() == -signal.SIGKILL
    running.close()
    monkeypatch.delattr(unpatched.os, "pidfd_open")
    assert launch.pidfd(os.getpid()) == -1


@pytest.mark.parametrize(("workers", "share"), [("1", 1), ("1000", 1000), ("junk", 1)])
def test_cores_are_shared_with_the_other_workers(
    workers: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    assert launch.usable_cores() == max(1, len(os.sched_getaffinity(0)) // share)


def test_a_request_is_read_from_its_file() -> None:
    request = launch.forked_request({"x": (1, b"bytes")})
    with launch.request_file(request) as fd:
        assert child.read_request(os.dup(fd)) == request
    assert frames.loads(frames.dumps(request["data"])) == {"x": (1, b"bytes")}
