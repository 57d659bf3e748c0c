"""Tests of the two ends of the socket between a child and its parent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.process.channel import EXIT_LOST, Channel, Outbox
from pytest_cudafork.process.protocol import frames, messages

COOKIE = bytes(range(16))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel]]:
    ours, theirs = socket.socketpair()
    yield ours, Channel(theirs, COOKIE)
    ours.close()
    theirs.close()


def read(sock: socket.socket) -> list[messages.Message]:
    plain = frames.Decoder(COOKIE).feed(sock.recv(1 << 16))
    return [messages.decode(one) for one in plain]


def test_messages_arrive_and_none_comes_when_the_other_end_is_gone(
    ends: tuple[socket.socket, Channel],
) -> None:
    ours, channel = ends
    channel.send(messages.Interrupt())
    channel.send(messages.Done())
    assert read(ours) == [messages.Interrupt(), messages.Done()]
    outbox = Outbox(ours, COOKIE)
    outbox.put(messages.Shown())
    outbox.put(messages.End())
    assert not outbox
    assert [channel.receive(), channel.receive()] == [messages.Shown(), messages.End()]
    ours.close()
    assert channel.receive() is None


def test_an_order_in_place_of_an_answer_is_kept(ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    outbox = Outbox(ours, COOKIE)
    outbox.put(messages.Shown(shouldstop="enough"))
    outbox.put(messages.End())
    assert channel.receive_answer() == messages.Shown(shouldstop="enough")
    assert channel.receive_answer() is None
    assert channel.receive_answer() is None
    assert channel.receive() == messages.End()
    ours.close()
    assert channel.receive_answer() is None


def test_descriptors_come_with_messages_and_are_not_inherited(
    ends: tuple[socket.socket, Channel],
) -> None:
    ours, channel = ends
    fd = os.memfd_create("test")
    job = messages.Job("a:b", ["request"])
    socket.send_fds(ours, [frames.encode(job.to_plain(), COOKIE)], [fd])
    assert channel.receive() == job
    (arrived,) = channel.descriptors
    assert not os.get_inheritable(arrived)
    assert os.fstat(arrived).st_ino == os.fstat(fd).st_ino
    channel.send(messages.CaptureFiles(), [arrived])
    _, fds, _, _ = socket.recv_fds(ours, 1 << 16, 4)
    assert len(fds) == 1
    for each in (fd, arrived, *fds):
        os.close(each)


def test_what_is_no_frame_is_an_error(ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    ours.sendall(b"this is no message at all")
    with pytest.raises(frames.FrameError):
        channel.receive()


def test_a_descendant_says_nothing_and_is_ended(
    ends: tuple[socket.socket, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, channel = ends
    statuses: list[int] = []
    monkeypatch.setattr(unpatched.os, "_exit", statuses.append)
    channel.leave_if_not_mine()
    assert statuses == []
    monkeypatch.setattr(unpatched.os, "getpid", lambda: -5)
    assert not channel.is_mine
    channel.send(messages.Done())
    channel.send(messages.CaptureFiles(), [0])
    channel.leave_if_not_mine()
    assert statuses == [EXIT_LOST]
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(1)


def test_a_channel_whose_descriptor_is_another_file_by_now_ends_the_process(
    ends: tuple[socket.socket, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(Exception):
        pass

    def leave(status: int) -> None:
        raise EndedError(status)

    _, channel = ends
    monkeypatch.setattr(unpatched.os, "_exit", leave)
    fd = channel._sock.fileno()
    kept = os.dup(fd)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, fd)
    with pytest.raises(EndedError):
        channel.send(messages.Done())
    os.dup2(kept, fd)
    channel.send(messages.Done())
    os.close(kept)
    os.close(nothing)


def test_an_outbox_keeps_what_the_other_end_does_not_take() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # the default may be large
    outbox = Outbox(ours, COOKIE)
    text = "x" * (1 << 22)
    outbox.put(messages.InternalError(text))
    assert outbox
    decoder = frames.Decoder(COOKIE)
    arrived: list[frames.Plain] = []
    while not arrived:
        arrived += decoder.feed(theirs.recv(1 << 20))
        outbox.flush()
    assert not outbox
    assert messages.decode(arrived[0]) == messages.InternalError(text)
    theirs.close()
    outbox.put(messages.End())  # nobody is there: noticed elsewhere
    assert not outbox
    ours.close()
