"""Tests of what a test in a child writes to the terminal at once."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from _pytest._io import TerminalWriter
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.isolate import live_text
from pytest_cudafork.isolate.live_text import ChildTerminal, ForwardedFile
from pytest_cudafork.process.protocol import messages


@given(st.text(max_size=20))
def test_a_stand_in_has_no_hooks_of_its_own(name: str) -> None:
    class Reporter:
        value = 1

        def pytest_runtest_logreport(self, report: object) -> None:
            raise AssertionError(report)

    stand_in = live_text.StandIn(Reporter())
    assert not [one for one in dir(stand_in) if one.startswith("pytest_")]
    stand_in.value = name
    assert stand_in._reporter.value == name


class _Session:
    """A configuration with a terminal that writes into memory."""

    def __init__(self, capture: str = "fd", terminal: bool = True) -> None:
        self.file = io.StringIO()
        self.reporter = SimpleNamespace(_tw=TerminalWriter(self.file), currentfspath=None)
        plugins = {"terminalreporter": self.reporter} if terminal else {}
        self.pluginmanager = SimpleNamespace(get_plugin=plugins.get)
        self._capture = capture

    def getoption(self, name: str, default: object) -> object:
        assert name == "capture"
        return self._capture or default

    @property
    def config(self) -> Any:
        return cast("Any", self)


class _Child(_Session):
    """A child whose terminal is forwarded: what it told and how often it waited."""

    def __init__(self, capture: str = "fd", told: bool = True) -> None:
        super().__init__(capture)
        self.told: list[messages.Message] = []
        self.waits = 0
        self.terminal = ChildTerminal(self.config, self._tell, self._wait)
        self._is_told = told
        self.terminal.take_over()

    def _tell(self, message: messages.Message) -> bool:
        self.told.append(message)
        return self._is_told

    def _wait(self) -> None:
        self.waits += 1


def test_what_a_child_writes_is_told_with_the_place_it_stands_at() -> None:
    child = _Child()
    child.reporter.currentfspath = Path("a/test_b.py")
    child.reporter._tw.write("text", flush=True)
    assert child.told == [messages.TerminalText("text", ["a/test_b.py"], False)]
    assert child.file.getvalue() == ""
    assert child.waits == 0


def test_where_tests_write_to_the_terminal_themselves_the_child_waits_for_the_parent() -> None:
    child = _Child("no")
    child.reporter._tw.write("text", flush=True)
    assert child.told == [messages.TerminalText("text", None, True)]
    assert child.waits == 1
    child.terminal.settle()
    assert child.waits == 2


def test_where_there_is_nobody_to_tell_the_real_terminal_gets_the_text() -> None:
    child = _Child(told=False)
    child.reporter._tw.write("text", flush=True)
    assert child.file.getvalue() == "text"


def test_output_of_the_test_itself_comes_out_before_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed: list[str] = []

    def broken() -> None:
        raise ValueError("closed")

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=broken))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(flush=lambda: flushed.append("stderr")))
    _Child("fd").terminal.flush()
    assert flushed == []
    _Child("tee-sys").terminal.flush()
    assert flushed == ["stderr"]


def test_a_child_goes_on_where_the_parents_line_stands() -> None:
    parent, child = _Session(), _Child()
    parent.reporter.currentfspath = Path("a/test_b.py")
    parent.reporter._tw.write("a/test_b.py ..", flush=True)
    position = live_text.position_of(parent.config)
    assert position == {"at": ["a/test_b.py"], "line": "a/test_b.py .."}
    child.terminal.begin(position)
    assert child.reporter.currentfspath == Path("a/test_b.py")
    assert child.reporter._tw._current_line == "a/test_b.py .."
    child.terminal.begin(None)
    assert child.reporter.currentfspath == Path("a/test_b.py")


def test_the_parent_shows_the_text_and_notes_the_place() -> None:
    parent = _Session()
    live_text.show(parent.config, messages.TerminalText("text", ["a/test_b.py"], False))
    live_text.flush(parent.config)
    assert parent.file.getvalue() == "text"
    assert parent.reporter.currentfspath == Path("a/test_b.py")
    with pytest.raises(TypeError, match="the place is a dict"):
        live_text.show(parent.config, messages.TerminalText("text", {}, False))


def test_without_a_terminal_nothing_is_shown_and_nothing_known() -> None:
    parent = _Session(terminal=False)
    live_text.show(parent.config, messages.TerminalText("text", 1, False))
    live_text.flush(parent.config)
    assert live_text.terminal_of(parent.config) is None
    assert live_text.position_of(parent.config) is None


def test_a_terminal_of_another_plugin_need_not_note_a_place() -> None:
    parent, child = _Session(), _Child()
    for session in (parent, child):
        del session.reporter.currentfspath
    parent.reporter._tw.write("..", flush=True)
    assert live_text.position_of(parent.config) == {"at": None, "line": ".."}
    child.terminal.take_over()
    child.reporter._tw.write("text", flush=True)
    assert child.told == [messages.TerminalText("text", None, False)]


def test_a_terminal_of_another_plugin_may_have_no_writer() -> None:
    parent = _Session()
    del parent.reporter._tw
    live_text.show(parent.config, messages.TerminalText("text", 1, False))
    live_text.flush(parent.config)
    assert live_text.terminal_of(parent.config) is None
    assert live_text.position_of(parent.config) is None


def test_a_child_is_told_of_colors_and_width() -> None:
    parent = _Session()
    parent.reporter._tw.fullwidth = 77
    assert live_text.terminal_of(parent.config) == {"markup": False, "width": 77}


class _Terminal(io.StringIO):
    encoding = "latin-1"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("real", "encoding", "tty"), [(_Terminal(), "latin-1", True), (None, "utf-8", False)]
)
def test_a_forwarded_file_answers_as_the_terminal_would(
    real: object, encoding: str, tty: bool
) -> None:
    written: list[str] = []
    file = ForwardedFile(written.append, real)
    assert (file.encoding, file.isatty()) == (encoding, tty)
    assert (file.write("snö"), file.write("")) == (3, 0)
    assert written == ["snö"]


@pytest.mark.parametrize(
    ("capture", "direct"), [("no", True), ("tee-sys", True), ("fd", False), ("", True)]
)
def test_without_a_capture_tests_write_to_the_terminal_themselves(
    capture: str, direct: bool
) -> None:
    assert live_text.is_direct(_Session(capture).config) is direct
