"""Tests of the memory by which one process leaves another a last message."""

from __future__ import annotations

import os

from pytest_cudafork.process import shared_mailbox
from pytest_cudafork.process.shared_mailbox import SharedMailbox, mailbox_file, read_mailbox


def test_a_forked_child_leaves_a_message_though_it_closes_everything() -> None:
    mailbox = SharedMailbox()
    assert mailbox.read() == b""
    pid = os.fork()
    if pid == 0:
        os.closerange(3, 1000)
        mailbox.write(b"last words")
        os._exit(0)
    os.waitpid(pid, 0)
    assert mailbox.read() == b"last words"
    mailbox.close()


def test_a_process_with_the_file_finds_it() -> None:
    fd = mailbox_file()
    writer, reader = SharedMailbox(fd), SharedMailbox(fd)
    writer.write(b"text")
    assert reader.read() == b"text"
    for one in (writer, reader):
        one.close()
    os.close(fd)


def test_a_message_that_is_far_too_long_is_not_left() -> None:
    mailbox = SharedMailbox()
    mailbox.write(b"x" * shared_mailbox._BYTES)
    assert mailbox.read() == b""
    mailbox.close()


def test_a_copied_message_is_read_from_its_file() -> None:
    fd = os.memfd_create("test")
    assert read_mailbox(fd) == b""
    os.write(fd, b"copy")
    assert read_mailbox(fd) == b"copy"
    os.close(fd)
