"""Tests of the sockets that processes talk over."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pytest_cudafork.process.protocol import sockets


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_pair_carries_bytes_and_descriptors(kind: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    ours, theirs = sockets.pair(kind)
    with ours, theirs:
        assert not os.get_inheritable(ours.fileno())
        sockets.send(ours, b"two", [fd, fd])
        sockets.send(ours, b"none")
        data, fds = sockets.receive_with_fds(theirs, 3, 2)
        assert (data, len(fds)) == (b"two", 2)
        assert os.read(fds[0], 10) == b"text"
        assert not os.get_inheritable(fds[0])
        assert sockets.receive_with_fds(theirs, 10, 2) == (b"none", [])
    assert ours.fileno() == -1
    for one in (fd, *fds):
        os.close(one)


def test_nothing_to_receive_is_an_error_where_nobody_waits() -> None:
    ours, theirs = sockets.pair()
    with ours, theirs, pytest.raises(BlockingIOError):
        sockets.receive_with_fds(ours, 10, 1, socket.MSG_DONTWAIT)


def test_a_time_limit_for_every_socket_is_none_for_these(monkeypatch: pytest.MonkeyPatch) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        ours, theirs = sockets.pair()
        again = sockets.Endpoint(os.dup(theirs.fileno()))
    finally:
        socket.setdefaulttimeout(before)
    with ours, theirs, again:
        for one in (ours, theirs, again):
            assert one.gettimeout() is None
            assert os.get_blocking(one.fileno())


def test_methods_that_a_test_has_replaced_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("send", "sendall", "sendmsg", "recvmsg", "close", "fileno"):
        monkeypatch.setattr(socket.socket, name, None)
    monkeypatch.setattr(socket, "socket", None)
    ours, theirs = sockets.pair()
    with ours, theirs:
        ours.sendall(b"text")
        assert sockets.receive_with_fds(theirs, 10, 1) == (b"text", [])


def test_whether_something_can_be_read_is_known_without_reading() -> None:
    ours, theirs = sockets.pair()
    with ours:
        assert not sockets.can_be_read(ours)
        sockets.send(theirs, b"x")
        assert sockets.can_be_read(ours)
        assert ours.recv(1) == b"x"
        theirs.close()
        assert sockets.can_be_read(ours)
