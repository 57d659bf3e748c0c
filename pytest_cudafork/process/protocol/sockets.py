"""The sockets that processes of ours talk over, whatever a test makes of the module ``socket``.

A test may forbid ``socket.socket`` (pytest-socket), replace its methods, or set a time limit for
every socket to come (``socket.setdefaulttimeout``). These are sockets of the class below it, which
cannot be changed, and they wait as long as it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import array, select, socket

__all__ = ["AnySocket", "Endpoint", "can_be_read", "pair", "receive_with_fds", "send"]

AnySocket = socket.SocketType
"""What an endpoint and a ``socket.socket`` have in common."""


_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)  # "|" of two members of an enumeration makes a third


class Endpoint(socket.SocketType):
    """One end of a connection; it blocks."""

    def __init__(self, fd: int) -> None:
        """Take over a descriptor."""
        super().__init__(fileno=fd)
        self.settimeout(None)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def pair(kind: int = socket.SOCK_STREAM) -> tuple[Endpoint, Endpoint]:
    """Return two ends that are connected, neither of them inheritable.

    Args:
        kind: What kind of connection: ``SOCK_STREAM`` or ``SOCK_SEQPACKET``.

    """
    ours, theirs = written_in_c.socket_pair(socket.AF_UNIX, kind)
    return Endpoint(ours.detach()), Endpoint(theirs.detach())


def send(sock: AnySocket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send all of the bytes; with copies of descriptors they must be few enough for one call."""
    if fds:
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    else:
        sock.sendall(data)


def receive_with_fds(
    sock: AnySocket, most_bytes: int, most_fds: int, flags: int = 0
) -> tuple[bytes, list[int]]:
    """Receive bytes and the descriptors that came with them, which are not inheritable."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(most_fds * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(most_bytes, space, flags | _CLOEXEC)
    for level, kind, body in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
    return data, list(fds)


def can_be_read(sock: AnySocket) -> bool:
    """Whether something is there to be read, the end of the connection included."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))
