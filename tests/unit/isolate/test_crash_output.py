"""Tests of what a test leaves for the time after a crash: its name in any session, its output."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.compat import forked, pytest_internals
from pytest_cudafork.isolate import crash_output
from pytest_cudafork.isolate.crash_output import Finder, identity, name_of, parameters
from pytest_cudafork.process.protocol import messages

SOURCE = """
import pytest

def test_plain(): pass

class TestClass:
    def test_method(self): pass

@pytest.mark.parametrize("x", [(1, "a"), (2, "b"), [3]])
def test_params(x): pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    """The tests of a file, as one session has them."""
    return pytester.getitems(SOURCE)


def test_a_test_is_named_by_its_file_and_the_names_below(items: list[pytest.Item]) -> None:
    file = str(items[0].path)
    assert [identity(item) for item in items] == [
        (file, "test_plain"),
        (file, "TestClass", "test_method"),
        (file, "test_params[x0]"),
        (file, "test_params[x1]"),
        (file, "test_params[x2]"),
    ]


def test_parameters_that_are_no_plain_data_say_nothing(items: list[pytest.Item]) -> None:
    assert [parameters(item) for item in items] == [
        [],
        [],
        [("x", "(1, 'a')")],
        [("x", "(2, 'b')")],
        [],
    ]


def test_a_test_is_found_again_by_what_names_it(items: list[pytest.Item]) -> None:
    finder = Finder(items)
    assert [finder.find(*name_of(item)) for item in items] == items
    assert finder.find([str(items[0].path), "test_other"], []) is None


def test_the_likeliest_test_is_found_without_looking_at_the_others(
    items: list[pytest.Item],
) -> None:
    finder = Finder(items[1:], first=items[0])
    assert finder.find(*name_of(items[0])) is items[0]


def test_ids_in_another_order_are_matched_by_value(items: list[pytest.Item]) -> None:
    names, values = name_of(items[2])
    swapped = [*names[:-1], "test_params[x1]"]
    assert Finder(items).find(swapped, values) is items[2]
    assert Finder(items).find(swapped, [["x", "(9, 'z')"]]) is None
    assert Finder(items).find([names[0], "test_plain"], [["x", "1"]]) is None


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
    crash_output.share_capture(cast("Any", None), cast("Any", channel))
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
