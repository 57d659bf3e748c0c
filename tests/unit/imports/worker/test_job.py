"""Tests of the audit's jobs, called in this process: what is told, and what is preloaded."""

from __future__ import annotations

import os
import socket
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.imports.values import import_result
from pytest_cudafork.imports.values.import_result import ImportResult
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import importer, job
from pytest_cudafork.observe.witnesses import WitnessError
from pytest_cudafork.process import child, launch
from pytest_cudafork.process.fork_server import ForkServer
from pytest_cudafork.process.protocol import frames, messages, server_messages
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings
from pytest_cudafork.process.shared_mailbox import SharedMailbox, mailbox_file
from tests.support.import_results import CLEAN_IMPORT


class LeftError(Exception):
    """The process would have ended."""


class Observer:
    """Watches nothing; begins without a driver."""

    witnesses = SimpleNamespace(limits=("nothing is seen",))


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What importers were made of, and what they imported; nothing is imported."""
    asked: list[Any] = []

    class Importer:
        def __init__(self, *args: Any, traces: bool = False, files: object = None) -> None:
            assert not traces, "nobody asked for them"
            assert files is None, "nobody asked for them"
            asked.append(args)

        def run(self, module: str, *, last: bool = True) -> ImportResult:
            asked.append((module, last))
            return CLEAN_IMPORT

    monkeypatch.setattr(importer, "Importer", Importer)
    return asked


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin no watch, and end no process."""

    def leave(status: int) -> None:
        raise LeftError(status)

    class Watch:
        def __init__(self, settings: Any, owner: str) -> None:
            if settings.device == "none at all":
                raise WitnessError("no such device")
            self.observer = Observer()

        def begin(self) -> None:
            """Watch nothing."""

    monkeypatch.setattr(job, "Watch", Watch)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr("gc.disable", lambda: None)
    monkeypatch.setattr(child, "prepare", lambda stacks_fd: None)
    monkeypatch.setattr(child, "adopt_streams", lambda: None)
    monkeypatch.setattr(
        "pytest_cudafork.process.descendants.leftovers.mark_process", lambda cookie: True
    )
    monkeypatch.setattr(sys, "argv", [])


def jobs() -> job.ImportJobs:
    return job.ImportJobs(cast("Any", Observer()), AuditSettings(timeout=7.0))


def test_an_import_leaves_what_is_to_be_told(imported: list[Any]) -> None:
    prepared, mailbox = jobs(), SharedMailbox()
    prepared.grown()
    assert job.run(child.Task("pkg.a", -1, mailbox=mailbox, prepared=prepared)) == 0
    assert import_result.decode(mailbox.read()) == CLEAN_IMPORT
    assert imported == [(prepared.observer, prepared.loaded, prepared.budget), ("pkg.a", True)]
    assert prepared.limit_of("pkg.a") == 7.0
    assert prepared.preload("pkg.b")
    assert imported[-1] == ("pkg.b", False)


def test_what_many_imports_load_is_wanted(imported: list[Any]) -> None:
    prepared = jobs()
    loaded = ["cudafork_a", "cudafork_b"]
    left = import_result.encode(CLEAN_IMPORT._replace(loaded=loaded, seconds=0.9))
    assert prepared.wants_preloaded("pkg.a", left, 0, waiting=0) == []
    assert prepared.wants_preloaded("pkg.a", left, 0, waiting=5) == []
    assert prepared.wants_preloaded("pkg.b", left, 0, waiting=4) == loaded


def test_what_is_not_clean_is_never_preloaded() -> None:
    prepared = jobs()
    names = ["cudafork_a", "cudafork_b.c", "cudafork_d"]
    assert prepared.worth_trying(names) == names
    assert prepared.wants_preloaded("cudafork_a", b"", -9, waiting=5) == []
    touched = import_result.encode(CLEAN_IMPORT._replace(state="initialized"))
    assert prepared.wants_preloaded("cudafork_b", touched, 0, waiting=5) == []
    prepared.refuse("cudafork_e")
    assert prepared.worth_trying([*names, "cudafork_e"]) == ["cudafork_d"]


def test_the_package_that_each_import_begins_with_may_decide_what_touches() -> None:
    left = import_result.encode(CLEAN_IMPORT._replace(decides=True))
    settings = AuditSettings(package="cudafork_pkg.sub")
    prepared = job.ImportJobs(cast("Any", Observer()), settings)
    names = ["cudafork_pkg", "cudafork_pkg.sub", "cudafork_pkg.other", "cudafork_p"]
    for name in names:
        prepared.wants_preloaded(name, left, 0, waiting=5)
    assert prepared.worth_trying(names) == ["cudafork_pkg", "cudafork_pkg.sub"]


class Server:
    """A fork server that notes what it is told."""

    def __init__(self, settings: AuditSettings) -> None:
        data = {"settings": settings.to_plain(), "ledger": "ledger.jsonl"}
        self.settings = ServerSettings(data=data)
        self.said: list[Any] = []

    def ready(self, why_not: CannotFork) -> None:
        self.said.append(why_not)

    def serve(self, prepared: job.ImportJobs, **about: Any) -> None:
        self.said.append(about)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("device", ["sm_90", "none at all"])
def test_the_server_watches_before_it_serves_or_says_why_not(device: str) -> None:
    server = Server(AuditSettings(device=device))
    with pytest.raises(LeftError, match="0"):
        job.prepare(cast("ForkServer", server))
    if device == "sm_90":
        assert server.said == [{"limits": ["nothing is seen"], "pid": os.getpid()}]
    else:
        assert server.said == [CannotFork("", "watch", "no such device")]


@pytest.mark.usefixtures("watched")
def test_a_library_that_is_in_use_cannot_be_hidden() -> None:
    server = Server(AuditSettings(without="sys"))
    with pytest.raises(LeftError, match="0"):
        job.prepare(cast("ForkServer", server))
    assert "sys cannot be hidden" in server.said[0].text


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("device", ["sm_90", "none at all"])
def test_a_fresh_interpreter_tells_first_whether_it_can_watch(
    device: str, imported: list[Any]
) -> None:
    cookie = bytes(16)
    settings = AuditSettings(device=device).to_plain()
    request = {"cookie": cookie, "settings": settings, "ledger": "x", "module": "pkg.a"}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stacks, mailbox = os.memfd_create("stacks"), mailbox_file()
    with (
        launch.request_file({**request, "endless": []}) as fd,
        pytest.raises(LeftError, match="0"),
    ):
        job.main(theirs.detach(), os.dup(fd), stacks, mailbox)
    ready = messages.decode_or_none(frames.only(ours.recv(1 << 16), cookie))
    assert isinstance(ready, server_messages.Ready)
    left = SharedMailbox(mailbox).read()
    if device == "sm_90":
        assert ready.about["limits"] == ["nothing is seen"]
        assert import_result.decode(left) == CLEAN_IMPORT
    else:
        assert (ready.why_not or {})["text"] == "no such device"
        assert left == b""
    ours.close()
    os.close(stacks)
    os.close(mailbox)
