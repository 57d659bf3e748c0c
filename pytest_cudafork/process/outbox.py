"""Owns what is still to be sent to a child. Runs in the parent.

It does not know what is sent, nor when the child is watched. A child may not listen yet, or never,
so nothing here waits for it.
"""

from __future__ import annotations

import socket

from pytest_cudafork.process import wire


class Outbox:
    """Messages on their way to one child."""

    def __init__(self, sock: socket.socket, cookie: bytes) -> None:
        self._sock = sock
        self._cookie = cookie
        self._left = b""

    def __bool__(self) -> bool:
        """Whether something is left to send."""
        return bool(self._left)

    def put(self, message: wire.Message) -> None:
        """Send a message, as much as the other end takes now."""
        self._left += wire.encode(message, self._cookie)
        self.flush()

    def flush(self) -> None:
        """Send as much of what is left as the other end takes now."""
        try:
            while self._left:
                sent = self._sock.send(self._left, socket.MSG_DONTWAIT)
                self._left = self._left[sent:]
        except BlockingIOError:
            pass
        except OSError:  # the child is dead, which is noticed where it is watched
            self._left = b""
