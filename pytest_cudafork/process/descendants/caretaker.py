"""The process that ends what tests have started when the pytest process is killed.

The kernel kills a test's process with its parent, but not what that has started. A fork server
lives long enough to do it for its own children; for those that are forked from the pytest process,
and for fresh interpreters, this process does. It is told of each, waits for the end of the pytest
process, and then ends what still has one of their marks.

Run by ``caretaker_client.py`` in an interpreter with nothing but the standard library and this
package, which it imports as little of as it can.
"""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import contextlib, os, select, signal, socket, struct
from pytest_cudafork.process.descendants import leftovers

BEGUN, OVER, LEAVE = b"+", b"-", b"."
PACKET = struct.Struct("16sc16si")
"""What it is told: the cookie that it was started with, what happened, and to which child: its
cookie and its process id."""
_DYING_SECONDS = 5.0
"""How long a process may take to end that has closed its end of the connection."""
_GATHER_MS = 50
"""How long it lets packets gather: woken for each, it would take a core from the tests three times
for each child. The socket holds far more than come meanwhile; who finds it full waits so long."""
_DEADLY = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(connection: int, parent: int, cookie: bytes) -> None:
    """Wait for the end of the session, and end what is left of it if it was none in order.

    Args:
        connection: The descriptor of the connection to the pytest process.
        parent: A descriptor that becomes readable when that process has ended; -1: there is none.
        cookie: What its packets bear; others may have a copy of its end of the connection.

    """
    for number in _DEADLY:  # what ends the session must not end this
        signal.signal(number, signal.SIG_IGN)
    leftovers.forget_mark()  # a session within a test: who ends that must leave this its work
    with socket.socket(fileno=connection) as told:
        children = _until_the_end(told, parent, cookie)
    if children:
        leftovers.end(children)


def _until_the_end(told: socket.socket, parent: int, cookie: bytes) -> dict[bytes, int]:
    """Note what is told; return the children that are left when nobody will tell more."""
    children: dict[bytes, int] = {}
    end, any_news = select.poll(), select.poll()
    any_news.register(told, select.POLLIN)
    if parent >= 0:
        end.register(parent, select.POLLIN)
        any_news.register(parent, select.POLLIN)
    while True:
        any_news.poll()
        ended = bool(end.poll(_GATHER_MS))
        with contextlib.suppress(BlockingIOError):
            while packet := told.recv(PACKET.size + 1, socket.MSG_DONTWAIT):
                if _note(packet, cookie, children):
                    return {}
            if not ended:  # the other end is closed a moment before its process is dead
                _wait_for(parent)
            return children
        if ended:
            return children


def _note(packet: bytes, cookie: bytes, children: dict[bytes, int]) -> bool:
    """Note what a packet says; True if it says that the session has ended in order."""
    if len(packet) != PACKET.size:
        return False
    bears, what, child, pid = PACKET.unpack(packet)
    if bears != cookie:
        return False
    if what == BEGUN:
        children[child] = pid
    elif what == OVER:
        children.pop(child, None)
    return bool(what == LEAVE)


def _wait_for(parent: int) -> None:
    if parent >= 0:
        select.select([parent], [], [], _DYING_SECONDS)


def package_folder() -> str:
    """Return the folder that this package is in, to import it from."""
    folder = __file__
    for _ in __name__.split("."):
        folder = os.path.dirname(folder)
    return folder
