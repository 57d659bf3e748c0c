"""Tests of the process that outlives the session: what it notes, and when it ends what is left."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pytest_cudafork
from pytest_cudafork.compat import unpatched
from pytest_cudafork.process.descendants import caretaker, leftovers, process_state
from pytest_cudafork.process.descendants.caretaker import BEGUN, LEAVE, OVER, PACKET

COOKIE, ONE, TWO = (bytes([number]) * 16 for number in range(3))


class _Session:
    """A caretaker that runs in this process, and the session that it looks after."""

    def __init__(self) -> None:
        self.told, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # it lives until its input is closed, as the pytest process until it ends
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._pidfd = os.pidfd_open(self.process.pid)
        self.ended: list[dict[bytes, int]] = []
        self.lived: list[bool] = []
        """Whether the process lived when the caretaker ended what it had left."""

    def tell(self, what: bytes, child: bytes = bytes(16), pid: int = 0) -> None:
        self.told.send(PACKET.pack(COOKIE, what, child, pid))

    def end(self, *, well: bool = False) -> None:
        """End the process of the session."""
        if well:
            self.tell(LEAVE)
            self.told.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def note(self, children: dict[bytes, int]) -> None:
        """Take note of what the caretaker ends."""
        self.lived.append(process_state.lives(self.process.pid))
        self.ended.append(children)

    def look_after(self, *, watched: bool = True) -> list[dict[bytes, int]]:
        """Run the caretaker to its end; return what it ended."""
        parent = os.dup(self._pidfd) if watched else -1
        caretaker.main(self._theirs.detach(), parent, COOKIE)
        if watched:
            os.close(parent)
        return self.ended

    def close(self) -> None:
        self.told.close()
        self._theirs.close()
        os.close(self._pidfd)
        if self.process.poll() is None:
            self.end()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Session]:
    made = _Session()
    monkeypatch.setattr(unpatched.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(leftovers, "forget_mark", lambda: None)
    monkeypatch.setattr(leftovers, "end", made.note)
    yield made
    made.close()


def test_what_is_left_is_ended_when_the_session_is_killed(session: _Session) -> None:
    session.tell(BEGUN, ONE, 11)
    session.tell(BEGUN, TWO, 12)
    session.tell(OVER, ONE)
    session.tell(OVER, ONE)
    session.end()  # its connection stays open: a process that it has forked has it, too
    assert session.look_after() == [{TWO: 12}]


def test_nothing_is_ended_after_a_session_that_ends_in_order(session: _Session) -> None:
    session.tell(BEGUN, ONE, 11)
    session.end(well=True)
    assert session.look_after() == []


def test_nothing_is_done_where_nothing_is_left(session: _Session) -> None:
    session.tell(BEGUN, ONE, 11)
    session.tell(OVER, ONE)
    session.end()
    assert session.look_after() == []


def test_what_bears_another_cookie_or_is_no_packet_is_not_noted(session: _Session) -> None:
    session.tell(BEGUN, ONE, 11)
    session.told.send(PACKET.pack(TWO, LEAVE, ONE, 0))
    session.told.send(b"junk")
    session.told.send(PACKET.pack(COOKIE, OVER, ONE, 0) + b"!")
    session.end()
    assert session.look_after() == [{ONE: 11}]


@pytest.mark.parametrize("watched", [True, False])
def test_a_connection_that_is_closed_is_the_end_too(
    session: _Session, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "_DYING_SECONDS", 300.0)
    session.tell(BEGUN, ONE, 11)
    session.told.close()
    dying = threading.Timer(0.1, session.end)
    if watched:
        dying.start()
    assert session.look_after(watched=watched) == [{ONE: 11}]
    assert session.lived == [not watched]
    if watched:
        dying.join()


def test_packets_gather_until_the_session_ends_at_the_latest(
    session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived: list[bool] = []
    note = caretaker._note

    def noted(*what: Any) -> bool:
        lived.append(process_state.lives(session.process.pid))
        return note(*what)

    def live() -> None:
        time.sleep(0.1)
        session.tell(BEGUN, TWO, 12)
        session.end()

    monkeypatch.setattr(caretaker, "_note", noted)
    monkeypatch.setattr(caretaker, "_GATHER_MS", 300_000)
    session.tell(BEGUN, ONE, 11)
    living = threading.Thread(target=live)
    living.start()
    assert session.look_after() == [{ONE: 11, TWO: 12}]
    assert lived == [False, False]
    living.join()


def test_more_packets_than_the_socket_holds_are_all_noted(session: _Session) -> None:
    def live() -> None:
        for number in range(2000):
            session.tell(BEGUN, number.to_bytes(16, "big"), number)
        session.end()

    living = threading.Thread(target=live)
    living.start()
    (left,) = session.look_after()
    assert sorted(left.values()) == list(range(2000))
    living.join()


def test_it_waits_as_long_as_the_session_lives(session: _Session) -> None:
    def live() -> None:
        session.tell(BEGUN, ONE, 11)
        session.tell(BEGUN, TWO, 12)
        session.end()

    living = threading.Timer(0.1, live)
    living.start()
    assert session.look_after() == [{ONE: 11, TWO: 12}]
    living.join()


def test_it_is_imported_from_the_folder_that_holds_the_package() -> None:
    package = Path(pytest_cudafork.__file__).parent
    assert Path(caretaker.package_folder()) == package.parent


def test_signals_that_end_a_session_are_ignored(
    session: _Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[str] = []
    monkeypatch.setattr(
        unpatched.signal, "signal", lambda number, handler: ignored.append(number.name)
    )
    session.end()
    session.look_after()
    assert ignored == ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"]
