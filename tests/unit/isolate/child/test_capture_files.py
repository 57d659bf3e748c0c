"""Tests of captured output that the parent can read after a crash."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.compat import forked, pytest_internals
from pytest_cudafork.isolate.child import capture_files
from pytest_cudafork.process.protocol import messages


class _Channel:
    def __init__(self) -> None:
        self.sent: list[tuple[object, list[int]]] = []

    def send_with_fds(self, message: object, fds: list[int]) -> None:
        self.sent.append((message, list(fds)))


def _shared(monkeypatch: pytest.MonkeyPatch, streams: object, *, every_test: bool = False) -> Any:
    """Return what is sent to the parent where pytest captures into these streams."""
    channel = _Channel()
    monkeypatch.setattr(pytest_internals, "captured_streams", lambda config: streams)
    claim = SimpleNamespace(every_test=every_test)
    monkeypatch.setattr(forked, "claim_of", lambda config: claim)
    capture_files.share_capture(cast("Any", None), cast("Any", channel))
    return channel.sent


def _content(fd: int) -> str:
    return os.pread(fd, 1000, 0).decode()


def test_files_that_pytest_captures_into_are_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        parts = (SimpleNamespace(tmpfile=out), SimpleNamespace(tmpfile=err))
        sent = _shared(monkeypatch, parts)
        assert sent == [(messages.CaptureFiles(), [out.fileno(), err.fileno()])]


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
    ((_, fds),) = _shared(monkeypatch, parts)
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
    ((_, fds),) = _shared(monkeypatch, (None, None), every_test=True)
    sys.stdout.writelines(["a", "b\udc80"])
    assert _content(fds[0]) == "ab\\udc80"
    stream: Any = sys.stdout
    assert stream.getvalue().startswith("ab")
    assert list(stream) == []
    for fd in fds:
        os.close(fd)
