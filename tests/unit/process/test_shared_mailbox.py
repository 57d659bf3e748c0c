"""Tests of the memory by which one process leaves another a last message."""

from __future__ import annotations

import os

import pytest

from pytest_cudafork.process import shared_mailbox
from pytest_cudafork.process.shared_mailbox import SharedMailbox, mailbox_file, read_mailbox


def test_nothing_was_left_until_something_is() -> None:
    mailbox = SharedMailbox()
    assert mailbox.read() == b""
    mailbox.write(b"first and longer")
    mailbox.write(b"second")
    assert mailbox.read() == b"second"
    mailbox.close()


def test_a_message_that_is_too_long_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_mailbox, "_BYTES", 4096)
    mailbox = SharedMailbox()
    mailbox.write(b"x" * (4096 - 8))
    assert mailbox.read() == b"x" * (4096 - 8)
    mailbox.write(b"y" * (4096 - 7))
    assert mailbox.read() == b"x" * (4096 - 8)


def test_a_forked_child_writes_and_its_parent_reads_whatever_was_closed() -> None:
    mailbox = SharedMailbox()
    pid = os.fork()
    if pid == 0:
        os.closerange(3, 256)
        mailbox.write(b"from the child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert mailbox.read() == b"from the child"


def test_two_mappings_of_one_file_are_one_mailbox() -> None:
    fd = mailbox_file()
    try:
        assert not os.get_inheritable(fd)
        writer, reader = SharedMailbox(fd), SharedMailbox(fd)
        writer.write(b"by exec")
        assert reader.read() == b"by exec"
    finally:
        os.close(fd)


def test_a_message_that_was_copied_into_a_file_is_read_whole() -> None:
    fd = os.memfd_create("copied")
    try:
        assert read_mailbox(fd) == b""
        os.write(fd, b"copied")
        assert read_mailbox(fd) == b"copied"
        assert read_mailbox(fd) == b"copied"
    finally:
        os.close(fd)
