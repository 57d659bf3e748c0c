"""Tests of captured output that the parent can read after a crash."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.plugins import forked
from pytest_cudafork.isolate.child import capture_files
from pytest_cudafork.process.protocol import messages


class _Channel:
    def __init__(self) -> None:
        self.sent: list[tuple[object, list[int]]] = []

    def send(self, message: object, fds: list[int]) -> None:
        self.sent.append((message, list(fds)))


def _shared(monkeypatch: pytest.MonkeyPatch, streams: object, *, every_test: bool = False) -> Any:
    """Return the files that the parent gets where pytest captures into these streams."""
    channel = _Channel()
    monkeypatch.setattr(pytest_internals, "captured_streams", lambda config: streams)
    claim = SimpleNamespace(every_test=every_test)
    monkeypatch.setattr(forked, "claim_of", lambda config: claim)
    kept, passed = capture_files.share_capture(cast("Any", None), cast("Any", channel))
    ((message, (first, second, *files)),) = channel.sent
    assert (first, second) == (kept.fd, passed.fd)
    assert message == messages.CaptureFiles(2 + len(files))
    os.close(kept.fd)
    os.close(passed.fd)
    return files


def _content(fd: int) -> str:
    return os.pread(fd, 1000, 0).decode()


def test_files_that_pytest_captures_into_are_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        parts = (SimpleNamespace(tmpfile=out), SimpleNamespace(tmpfile=err))
        assert _shared(monkeypatch, parts) == [out.fileno(), err.fileno()]


@pytest.mark.parametrize("file", [None, io.StringIO(), SimpleNamespace(fileno=lambda: -1)])
def test_where_there_are_no_files_nothing_is_shared(
    monkeypatch: pytest.MonkeyPatch, file: object
) -> None:
    assert _shared(monkeypatch, None) == []
    assert _shared(monkeypatch, (SimpleNamespace(tmpfile=file),) * 2) == []


def test_text_that_pytest_keeps_in_memory_is_written_to_memory_files_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = pytest_internals.memory_stream()
    parts = (SimpleNamespace(tmpfile=kind()), SimpleNamespace(tmpfile=kind()))
    fds = _shared(monkeypatch, parts)
    parts[0].tmpfile.write("first phase")
    assert _content(fds[0]) == "first phase"
    parts[0].tmpfile.seek(0)
    parts[0].tmpfile.truncate()
    parts[0].tmpfile.write("second")
    assert (_content(fds[0]), parts[0].tmpfile.getvalue()) == ("second", "second")
    for fd in fds:
        os.close(fd)


def test_as_with_pytest_forked_output_is_kept_without_capture_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert _shared(monkeypatch, (None, None)) == []
    fds = _shared(monkeypatch, (None, None), every_test=True)
    sys.stdout.writelines(["a", "b\udc80"])
    assert _content(fds[0]) == "ab\\udc80"
    stream: Any = sys.stdout
    assert stream.getvalue().startswith("ab")
    assert list(stream) == []
    for fd in fds:
        os.close(fd)


@pytest.fixture
def outputs() -> Iterator[None]:
    """Standard output and error of this process, which are as before when a test is over."""
    kept = [os.dup(1), os.dup(2)]
    yield
    for number, fd in enumerate(kept):
        os.dup2(fd, number + 1)
        os.close(fd)


def _captured(tmp_path: Path) -> list[Any]:
    """Capture as pytest does, into files: 1 and 2 lead to them, and so do their descriptors."""
    parts = []
    for number, name in enumerate(("out", "err")):
        file = open(tmp_path / name, "w+")  # noqa: SIM115  # the test closes it
        os.dup2(file.fileno(), number + 1)
        parts.append(SimpleNamespace(tmpfile=file))
    return parts


def _read(file: Any) -> bytes:
    return os.pread(file.fileno(), 1000, 0)


@pytest.mark.usefixtures("outputs")
def test_a_child_captures_into_files_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = _captured(tmp_path)
    monkeypatch.setattr(pytest_internals, "captured_streams", lambda config: parts)
    os.write(1, b"the parent's")
    files = capture_files.capture_files(cast("Any", None))
    assert files == [part.tmpfile.fileno() for part in parts]
    capture_files.renew_files(files)
    os.write(1, b"out of the child")
    os.write(2, b"err of the child")
    assert [_read(part.tmpfile) for part in parts] == [b"out of the child", b"err of the child"]
    assert (tmp_path / "out").read_bytes() == b"the parent's"
    assert (tmp_path / "err").read_bytes() == b""
    assert not any(os.get_inheritable(fd) for fd in files)
    for part in parts:
        part.tmpfile.close()


@pytest.mark.usefixtures("outputs")
def test_where_the_output_leads_elsewhere_for_now_it_stays_so(tmp_path: Path) -> None:
    parts = _captured(tmp_path)
    with open(tmp_path / "terminal", "w+") as terminal:
        os.dup2(terminal.fileno(), 1)
        capture_files.renew_files([parts[0].tmpfile.fileno(), -1])
        os.write(1, b"shown")
        os.write(2, b"as before")
        assert _read(terminal) == b"shown"
    assert _read(parts[0].tmpfile) == b""
    assert (tmp_path / "err").read_bytes() == b"as before"
    for part in parts:
        part.tmpfile.close()


@pytest.mark.parametrize("file", [None, io.StringIO(), SimpleNamespace(fileno=lambda: "x")])
def test_what_pytest_does_not_capture_into_files_has_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, file: object
) -> None:
    for streams in (None, (None, SimpleNamespace(tmpfile=file))):
        monkeypatch.setattr(pytest_internals, "captured_streams", lambda config, s=streams: s)
        assert capture_files.capture_files(cast("Any", None)) == [-1, -1]


@pytest.mark.usefixtures("outputs")
def test_the_child_of_a_process_that_captures_for_nobody_writes_to_the_parents_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = _captured(tmp_path)
    names = ("terminal out", "terminal err")
    terminal = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in names]
    for part in parts:  # where pytest's own capture leads back to
        part.targetfd_save = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(pytest_internals, "captured_streams", lambda config: parts)
    faults = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(pytest_internals, "descriptor_of_faults", lambda config: faults)
    capture = capture_files.ForkedCapture(cast("Any", None), terminal[0], terminal[1])
    capture.renew()
    os.write(1, b"to 1")
    os.write(2, b"to 2")
    for part, text in zip(parts, (b"saved out", b"saved err"), strict=True):
        os.write(part.targetfd_save, text)
        os.close(part.targetfd_save)
    os.write(faults, b"faults")
    os.close(faults)
    assert [(tmp_path / name).read_bytes() for name in names] == [
        b"to 1saved out",
        b"to 2saved errfaults",
    ]
    assert [_read(part.tmpfile) for part in parts] == [b"", b""]  # not those of other children
    for fd in terminal:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    for part in parts:
        part.tmpfile.close()
