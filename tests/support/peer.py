"""The parent of a child that a test is in the place of: what it orders, and what it is told."""

from __future__ import annotations

import socket
from typing import Any, TypeVar

from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.protocol import frames, messages

COOKIE = bytes(16)

_Kind = TypeVar("_Kind", bound=messages.Message)


class Peer:
    """The parent's end of a socket, and the child's channel at the other end, in one process."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.channel = Channel(self._theirs, COOKIE)

    def close(self) -> None:
        """Be gone, and the child's end with it."""
        self._ours.close()
        self._theirs.close()

    def leave(self) -> None:
        """Be gone."""
        self._ours.close()

    def orders(self, *orders: messages.Message) -> None:
        """Send all there is to be said, and close the connection in this direction."""
        for one in orders:
            self._ours.sendall(frames.encode(one.to_plain(), COOKIE))
        self._ours.shutdown(socket.SHUT_WR)

    def said(self) -> list[Any]:
        """Return what the child has said since the last time."""
        data = b""
        try:
            while more := self._ours.recv(1 << 16):
                data += more
        except BlockingIOError:  # that was all
            pass
        return [messages.decode(one) for one in frames.Decoder(COOKIE).feed(data)]


def of_kind(said: list[Any], kind: type[_Kind]) -> list[_Kind]:
    """Return the messages of one kind."""
    return [one for one in said if isinstance(one, kind)]
