"""The two ends of the socket between a child and the process that waits for it.

``Channel`` is the child's end, ``Outbox`` what the parent still has to send; the parent reads in
``supervision.py``, where it also watches for the child's end.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cudafork.compat.unpatched import os, socket
from pytest_cudafork.process.forking.short_stack import EXIT_LOST as EXIT_LOST
from pytest_cudafork.process.protocol import frames, messages, sockets

_READ_BYTES = 1 << 16


class Channel:
    """The child's end.

    Only the process that made it speaks: a grandchild forked by the test, which runs on into our
    code because an exception carried it out of the test, says nothing (see ``is_mine``).
    """

    def __init__(self, sock: sockets.AnySocket, cookie: bytes) -> None:
        self.descriptors: list[int] = []
        """Those that came with messages, in their order; whoever uses one takes it out."""
        self._sock = sock
        self._cookie = cookie
        self._pid = os.getpid()
        self._file: tuple[int, ...] | None = os.fstat(sock.fileno())[:2]
        self._decoder = frames.Decoder(cookie)
        self._inbox: list[messages.Message] = []

    @property
    def is_mine(self) -> bool:
        """Whether this process is the child itself and no descendant of it."""
        return os.getpid() == self._pid

    def send(self, message: messages.Message, fds: Sequence[int] = ()) -> None:
        """Send one message; with copies of file descriptors it must be a short one.

        Raises:
            OSError: The other end is gone.

        """
        if self.is_mine:
            self._check_descriptor()
            sockets.send(self._sock, frames.encode(message.to_plain(), self._cookie), fds)

    def _check_descriptor(self) -> None:
        """End this process if the test has closed our descriptor, or opened something else there.

        Nothing can be told any more; and going on, pytest would restore what it takes for its own
        descriptors and write to files of the test.
        """
        try:
            file = os.fstat(self._sock.fileno())[:2]
        except OSError:
            file = None
        if file != self._file:
            os._exit(EXIT_LOST)

    def receive(self) -> messages.Message | None:
        """Wait for the next message of the parent; None when it is gone or has nothing more.

        Raises:
            FrameError: What came is no message.

        """
        while not self._inbox:
            try:
                data, fds = sockets.receive_with_fds(self._sock, _READ_BYTES, messages.MOST_FDS)
            except ConnectionError:
                data, fds = b"", []
            self.descriptors += fds
            if not data:
                return None
            self._inbox.extend(messages.decode(plain) for plain in self._decoder.feed(data))
        return self._inbox.pop(0)

    def receive_answer(self) -> messages.Shown | None:
        """Wait for the answer to a message; None where the parent is gone or has an order instead.

        An order is kept for who asks for the next one.

        Raises:
            FrameError: What came is no message.

        """
        message = self.receive()
        if isinstance(message, messages.Shown):
            return message
        if message is not None:
            self._inbox.insert(0, message)
        return None

    @property
    def has_message(self) -> bool:
        """Whether the parent has sent something that nobody has read yet."""
        return bool(self._inbox) or sockets.can_be_read(self._sock)

    def leave_if_not_mine(self) -> None:
        """End this process at once if it is a descendant that ran out of the test."""
        if not self.is_mine:
            os._exit(EXIT_LOST)


class Outbox:
    """What is still to be sent to one child.

    The child may not listen yet, or never, so nothing here waits for it.
    """

    def __init__(self, sock: sockets.AnySocket, cookie: bytes) -> None:
        self._sock = sock
        self._cookie = cookie
        self._left = b""

    def __bool__(self) -> bool:
        """Whether something is left to send."""
        return bool(self._left)

    def put(self, message: messages.Message) -> None:
        """Send a message, as much as the other end takes now."""
        self._left += frames.encode(message.to_plain(), self._cookie)
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
