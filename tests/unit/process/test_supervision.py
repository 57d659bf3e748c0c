"""Tests of the watch over one child: messages, time limit, end, descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import pytest

from pytest_cudafork.process import child, launch, supervision
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.descendants.leftovers import Sweeper
from pytest_cudafork.process.protocol import frames, messages
from pytest_cudafork.process.signals import Held
from pytest_cudafork.process.supervision import Said, Supervisor
from tests.support.isolation import is_gone


def start(work: Callable[[Channel], None]) -> launch.Running:
    """Fork a child that does this and ends well; return when it has begun with it."""
    begun, begins = os.pipe()

    def body(channel: Channel, stacks_fd: int) -> NoReturn:
        child.prepare(stacks_fd)
        os.write(begins, b".")
        work(channel)
        os._exit(0)

    running = launch.start_fork(body)
    os.close(begins)
    assert os.read(begun, 1)
    os.close(begun)
    return running


def take(message: messages.Message, fds: list[int]) -> Said:
    """Take a message as its kind says."""
    for fd in fds:
        os.close(fd)
    if isinstance(message, messages.Done):
        return Said.DONE
    return Said.LEAVING if isinstance(message, messages.TestOver) else Said.MORE


def test_a_child_that_ends_well() -> None:
    def work(channel: Channel) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        channel.send(messages.CaptureFiles(), [nothing, nothing])
        channel.send(messages.Done())

    ending = Supervisor(start(work), Sweeper()).watch(take, 60.0)
    assert ending is not None
    assert (ending.exitcode, ending.finished, ending.malformed) == (0, True, "")
    assert (ending.timed_out, ending.lingered, ending.stacks) == (False, False, "")


def test_a_child_with_more_work_goes_on() -> None:
    def work(channel: Channel) -> None:
        while isinstance(channel.receive(), messages.Shown):
            channel.send(messages.Done())

    supervisor = Supervisor(start(work))
    for _ in range(2):
        supervisor.outbox.put(messages.Shown())
        assert supervisor.watch(take, 60.0, until_done=True) is None
    assert not supervisor.settle(wait=False)
    supervisor.outbox.put(messages.End())
    assert supervisor.settle(wait=True)
    assert is_gone(supervisor.running.pid)


def test_a_child_that_was_done_and_died_before_anybody_looked_was_done() -> None:
    def work(channel: Channel) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for _ in range(2):  # each is read by itself
            channel.send(messages.CaptureFiles(), [nothing, nothing])
        channel.send(messages.Done())

    running = start(work)
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    supervisor = Supervisor(running)
    assert supervisor.watch(take, 60.0, until_done=True) is None
    assert supervisor.settle(wait=False)
    assert supervisor.trouble == ""


@pytest.mark.parametrize(
    ("last", "trouble"),
    [
        (lambda: None, ""),
        (os.abort, "was killed by SIGABRT (exit status -6)"),
        (lambda: os._exit(3), "exited with status 3"),
        (lambda: time.sleep(100), "did not end within 0.5 s and was killed"),
    ],
    ids=["well", "abort", "exit", "hang"],
)
def test_what_a_child_does_after_it_was_done_is_known(
    last: Callable[[], None], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "EXIT_SECONDS", 0.5 if "within" in trouble else 300.0)

    def work(channel: Channel) -> None:
        channel.send(messages.Done())
        last()

    supervisor = Supervisor(start(work))
    assert supervisor.watch(take, 60.0, until_done=True) is None
    assert supervisor.settle(wait=True)
    assert supervisor.trouble == trouble


def test_what_could_not_be_ended_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "end", lambda children: [os.getpid()])
    supervisor = Supervisor(start(lambda channel: None))
    with pytest.warns(RuntimeWarning, match=rf"could not be ended: {os.getpid()} \(.*python"):
        supervisor.kill()


def test_the_status_of_a_child_that_went_with_its_server_is_no_trouble_of_its_own() -> None:
    supervisor = Supervisor(start(lambda channel: channel.send(messages.Done())))
    assert supervisor.watch(take, 60.0, until_done=True) is None
    reap = supervisor.running.reap

    def unknown() -> None:
        reap()

    supervisor.running = supervisor.running._replace(reap=unknown)
    assert supervisor.settle(wait=True)
    assert supervisor.trouble == ""


def test_a_child_that_hangs_is_ended_with_its_stacks() -> None:
    ending = Supervisor(start(lambda channel: time.sleep(100))).watch(take, 0.1)
    assert ending is not None
    assert ending.timed_out
    assert "in work" not in ending.stacks
    assert "test_supervision.py" in ending.stacks
    assert ending.exitcode == -signal.SIGABRT


def test_one_that_stays_with_nothing_left_to_do_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "EXIT_SECONDS", 0.3)

    def work(channel: Channel) -> None:
        channel.send(messages.TestOver(last=True))
        channel.send(messages.Done())
        time.sleep(100)

    ending = Supervisor(start(work)).watch(take, 60.0)
    assert ending is not None
    assert (ending.lingered, ending.timed_out, ending.finished) == (True, False, True)


def test_one_that_takes_its_time_to_be_taken_apart_does_not_linger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that has much memory, or where the kernel has no core for it."""
    exits, may_exit = os.pipe()
    wait, leap = Supervisor._wait, [0.0]

    def wait_long(self: Supervisor, seconds: float | None) -> bool:
        if self._said is Said.DONE and not leap[0]:
            leap[0] = 20.0
            return False
        if leap[0] and seconds:
            os.write(may_exit, b".")
        return wait(self, seconds)

    def work(channel: Channel) -> None:
        channel.send(messages.TestOver(last=True))
        channel.send(messages.Done())
        os.read(exits, 1)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + leap[0], sleep=time.sleep)
    monkeypatch.setattr(supervision, "time", clock)
    monkeypatch.setattr(Supervisor, "_wait", wait_long)
    ending = Supervisor(start(work)).watch(take, 600.0)
    for fd in (exits, may_exit):
        os.close(fd)
    assert ending is not None
    assert (ending.lingered, ending.timed_out, ending.exitcode) == (False, False, 0)


@pytest.mark.parametrize(("limit", "late"), [(0.2, True), (60.0, False), (None, False)])
def test_what_runs_at_the_end_of_a_process_is_within_its_limit(
    limit: float | None, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "EXIT_SECONDS", 0.1)
    monkeypatch.setattr(supervision, "_LEAVE_SECONDS", 0.3)

    said, says = os.pipe()

    def work(channel: Channel) -> None:
        channel.send(messages.TestOver(last=True))
        os.write(says, b".")
        time.sleep(100 if late else 1)

    running = start(work)
    assert os.read(said, 1)
    for fd in (said, says):
        os.close(fd)
    ending = Supervisor(running).watch(take, limit)
    assert ending is not None
    assert (ending.lingered, ending.timed_out, ending.finished) == (False, late, True)


@pytest.mark.parametrize("until_done", [True, False])
def test_what_was_said_in_time_counts_where_nobody_looked_in_time(until_done: bool) -> None:
    """As after Ctrl-Z of the session, or where there is no core for it."""
    said, says = os.pipe()

    def work(channel: Channel) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for _ in range(20):  # each is read by itself
            channel.send(messages.CaptureFiles(), [nothing, nothing])
        channel.send(messages.Done())
        os.write(says, b".")
        if until_done:
            time.sleep(100)

    supervisor = Supervisor(start(work))
    assert os.read(said, 1)
    for fd in (said, says):
        os.close(fd)
    ending = supervisor.watch(take, 1e-9, until_done=until_done)
    if until_done:
        assert ending is None
        supervisor.kill()
    else:
        assert ending is not None
        assert (ending.timed_out, ending.lingered, ending.exitcode) == (False, False, 0)


def test_a_descendant_that_says_more_and_more_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a child's own code could, that runs on in a process which a test has forked."""
    monkeypatch.setattr(supervision, "_LATE_READS", 3)
    taken: list[int] = []

    def take_slowly(message: messages.Message, fds: list[int]) -> Said:
        taken.append(len(fds))
        assert len(taken) < 200_000, "it is read for ever"
        return Said.MORE

    def work(channel: Channel) -> None:
        begun, begins = os.pipe()
        if os.fork() == 0:
            frame = frames.encode(messages.InternalError("more").to_plain(), channel._cookie)
            channel._sock.sendall(frame * 1000)
            os.write(begins, b".")
            while True:
                channel._sock.sendall(frame * 1000)
        os.read(begun, 1)

    ending = Supervisor(start(work)).watch(take_slowly, 300.0)
    assert ending is not None
    assert (ending.exitcode, ending.timed_out) == (0, False)


def test_who_says_more_and_more_has_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_LATE_READS", 3)

    def work(channel: Channel) -> None:
        while True:
            channel.send(messages.InternalError("more"))

    ending = Supervisor(start(work)).watch(take, 0.1)
    assert ending is not None
    assert (ending.timed_out, ending.malformed) == (True, "")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"this is no message at all", "expected a frame"),
        (b"\xc0FRK", "the last message is cut off after 4 bytes"),
    ],
)
def test_what_is_no_message_ends_the_child(data: bytes, words: str) -> None:
    def work(channel: Channel) -> None:
        channel._sock.sendall(data)
        if not data.startswith(b"\xc0"):
            time.sleep(100)

    ending = Supervisor(start(work)).watch(take, 60.0)
    assert ending is not None
    assert words in ending.malformed


def test_before_any_work_is_given_no_message_is_due() -> None:
    supervisor = Supervisor(start(lambda channel: channel.send(messages.Done())))
    with pytest.raises(Exception, match="before any work was given"):
        supervisor._on_message(messages.Done(), [])
    supervisor.kill()


def test_an_error_of_the_one_who_takes_messages_ends_the_child() -> None:
    def work(channel: Channel) -> None:
        channel.send(messages.Done())
        time.sleep(100)

    def fail(message: messages.Message, fds: list[int]) -> Said:
        raise KeyboardInterrupt

    running = start(work)
    with pytest.raises(KeyboardInterrupt):
        Supervisor(running).watch(fail, 60.0)
    assert is_gone(running.pid)


def test_descendants_are_ended_with_the_child() -> None:
    def work(channel: Channel) -> None:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(100)
        channel.send(messages.InternalError(str(pid)))
        os.kill(os.getpid(), signal.SIGKILL)

    said: list[messages.Message] = []

    def keep(message: messages.Message, fds: list[int]) -> Said:
        said.append(message)
        return Said.MORE

    ending = Supervisor(start(work)).watch(keep, 60.0)
    assert ending is not None
    assert ending.exitcode == -signal.SIGKILL
    (one,) = said
    assert isinstance(one, messages.InternalError)
    assert is_gone(int(one.text))


def test_without_pidfds_the_child_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "pidfd", lambda pid: -1)
    running = start(lambda channel: channel.send(messages.Done()))
    assert not running.has_ended
    ending = Supervisor(running).watch(take, 60.0)
    assert ending is not None
    assert ending.exitcode == 0
    hanging = Supervisor(start(lambda channel: time.sleep(100)))
    ending = hanging.watch(take, 0.2)
    assert ending is not None
    assert ending.timed_out


def _ahead(message: messages.Message, fds: list[int]) -> Said:
    """As ``take``; with the end of a test the child goes on to the next."""
    over = isinstance(message, messages.TestOver)
    return Said.AHEAD if over and getattr(message, "ahead", False) else take(message, fds)


def test_what_a_child_says_ahead_is_kept_for_its_turn_even_if_it_dies() -> None:
    over = messages.TestOver(last=False, ahead=True)

    def work(channel: Channel) -> None:
        for phase in ("call", "teardown"):
            channel.send(messages.PhaseBegins(phase))
            channel.send(over)
        channel.send(messages.PhaseBegins("call"))
        os._exit(3)

    supervisor, phases = Supervisor(start(work)), []

    def note(message: messages.Message, fds: list[int]) -> Said:
        if isinstance(message, messages.PhaseBegins):
            phases.append(message.phase)
        return _ahead(message, fds)

    for number in (1, 2):
        assert supervisor.watch(note, 60.0, until_done=True) is None
        assert len(phases) == number
    ending = supervisor.watch(note, 60.0, until_done=True)
    assert phases == ["call", "teardown", "call"]
    assert ending is not None
    assert (ending.exitcode, ending.malformed) == (3, "")


def test_an_interrupt_ends_a_child_and_what_it_had_finished_counts() -> None:
    def work(channel: Channel) -> None:
        channel.send(messages.TestOver(last=False, ahead=True))
        os.kill(os.getppid(), signal.SIGINT)
        channel.send(messages.TestOver(last=False, ahead=True))
        time.sleep(1000)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        held = Held((signal.default_int_handler,))
        with held.kept():
            supervisor = Supervisor(start(work))
            supervisor.held = held
            until = time.monotonic() + 60.0
            while not held.came and time.monotonic() < until:
                time.sleep(0.01)
            assert supervisor.watch(_ahead, 60.0, until_done=True) is None
            with contextlib.suppress(KeyboardInterrupt):  # or it came to send the second one
                assert supervisor.watch(_ahead, 60.0, until_done=True) is None
                supervisor.kill()
            with pytest.raises(KeyboardInterrupt):
                held.strike()
    finally:
        signal.signal(signal.SIGINT, before)
    assert is_gone(supervisor.running.pid)
