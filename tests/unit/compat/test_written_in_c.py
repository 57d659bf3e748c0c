"""Names in C below modules of the standard library, and what is done with them."""

from __future__ import annotations

import _ctypes
import _json
import _signal  # type: ignore[import-not-found]
import _socket
import json
import math
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.compat import written_in_c
from tests.unit.compat import require

NAMES: list[tuple[Any, str, str]] = [
    (_socket, "socketpair", "the connection with a child"),
    (_json, "make_encoder", "messages of a test that has replaced parts of json"),
    (_json, "encode_basestring_ascii", "likewise"),
    (_json, "make_scanner", "likewise"),
    (_signal, "signal", "what signals mean while a test runs in its own process"),
    (_signal, "getsignal", "likewise"),
    (_signal, "pthread_sigmask", "a fork that no signal tears apart"),
    (_ctypes, "dlopen", "the end of a program with the command that runs it"),
    (_ctypes, "dlsym", "likewise"),
    (_ctypes, "call_function", "likewise"),
]

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("owner", "name", "needed_for"), NAMES, ids=lambda value: getattr(value, "__name__", value)
)
def test_the_name_is_there(owner: Any, name: str, needed_for: str) -> None:
    require("Python", owner, name, needed_for)


def test_a_pair_is_connected_whatever_has_become_of_the_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", None)
    ours, theirs = written_in_c.socket_pair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.send(b"text")
    assert theirs.recv(10) == b"text"
    ours.close()
    theirs.close()


def test_signals_are_set_and_read_as_the_module_signal_does() -> None:
    number, former = signal.SIGUSR2, signal.getsignal(signal.SIGUSR2)
    try:
        written_in_c.set_signal_handler(number, signal.SIG_IGN)
        assert signal.getsignal(number) is signal.SIG_IGN
        assert written_in_c.signal_handler(number) == signal.SIG_IGN
        assert written_in_c.set_signal_handler(number, signal.default_int_handler) == signal.SIG_IGN
        assert written_in_c.signal_handler(number) is signal.default_int_handler
    finally:
        signal.signal(number, former)


def test_signals_are_held_back_and_let_through() -> None:
    before = written_in_c.set_signal_mask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        written_in_c.set_signal_mask(signal.SIG_SETMASK, before)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.slow
@given(PLAIN)
def test_what_is_written_is_what_json_writes_and_is_read_again(value: Any) -> None:
    text = written_in_c.json_writer()(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert written_in_c.json_reader()(text, lambda found: found) == value


def test_numbers_that_are_none_are_written_and_read() -> None:
    text = written_in_c.json_writer()([math.inf, math.nan])
    infinite, no_number = written_in_c.json_reader()(text, lambda found: found)
    assert infinite == math.inf
    assert math.isnan(no_number)


def test_objects_are_handed_to_the_hook_inner_ones_first() -> None:
    assert written_in_c.json_reader()('{"a":{"b":1}}', lambda found: list(found)) == ["a"]


NO_JSON = ["", "{", '{"a"', '{"a": "b', "[1", "[1] [2]", "x"]


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, StopIteration)):
        written_in_c.json_reader()(text, lambda found: found)


def test_what_is_no_json_is_an_error_where_nothing_has_imported_json() -> None:
    program = """
import sys
from pytest_cudafork.compat.written_in_c import json_reader
assert "json" not in sys.modules
for text in sys.argv[1:]:
    try:
        json_reader()(text, None)
    except (ValueError, StopIteration):
        continue
    sys.exit(f"{text!r} was read")
"""
    command = [sys.executable, "-c", program, *NO_JSON]
    subprocess.run(command, check=True, timeout=300)


def test_without_the_parts_in_c_the_classes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_in_c, "_json", None)
    text = written_in_c.json_writer()({"a": [1, None]})
    assert text == '{"a":[1,null]}'
    assert written_in_c.json_reader()(text, lambda found: list(found.items())) == [("a", [1, None])]


def test_separators_and_constants_are_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ValueError(name)

    for make in (None, "as ever"):
        assert written_in_c.json_writer(", ", ": ")({"a": [1, 2], "b": {}}) == (
            '{"a": [1, 2], "b": {}}'
        )
        read = written_in_c.json_reader(refuse)
        assert read('{"a": 1}', None) == {"a": 1}
        for constant in ("NaN", "-Infinity"):
            with pytest.raises(ValueError, match=constant):
                read(constant, None)
        if make is None:
            monkeypatch.setattr(written_in_c, "_json", None)


def test_what_cannot_be_written_is_an_error() -> None:
    with pytest.raises(TypeError, match="type object is not JSON serializable"):
        written_in_c.json_writer()([object()])


def test_a_function_of_the_c_library_is_called() -> None:
    assert written_in_c.call_in_c("getpid") == os.getpid()
    with pytest.raises(OSError, match="no_such_function"):
        written_in_c.call_in_c("no_such_function")
