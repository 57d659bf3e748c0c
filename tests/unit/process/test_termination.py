"""Tests of what SIGTERM and Ctrl-C mean while an isolated test runs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.plugins import timeout
from pytest_cudafork.process import termination
from pytest_cudafork.process.forking import fault_watchdog


@pytest.fixture(autouse=True)
def _sigterm_means_the_default() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_the_session_with_the_status_of_a_shell() -> None:
    with (
        pytest.raises(pytest.exit.Exception, match=r"SIGTERM came while a\.py::test_x ran") as told,
        termination.sigterm_ends_session("a.py::test_x"),
    ):
        signal.raise_signal(signal.SIGTERM)
    assert told.value.returncode == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_no_code_that_is_at_work_when_it_comes_swallows_sigterm() -> None:
    with (
        pytest.raises(pytest.exit.Exception, match="SIGTERM came"),
        termination.sigterm_ends_session("a.py::test_x"),
        contextlib.suppress(Exception),
    ):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("moment", ["after it is set", "before it is given back"])
def test_sigterm_in_the_first_and_in_the_last_moment_ends_the_session(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = ["after it is set", "before it is given back"]

    def change(number: int, handler: Any) -> Any:
        before = None
        if handler is termination._terminate:
            before = signal.signal(number, handler)
        if moments and moments.pop(0) == moment:
            signal.raise_signal(signal.SIGTERM)
        return before or signal.signal(number, handler)

    monkeypatch.setattr(written_in_c, "set_signal_handler", change)
    with (
        pytest.raises(pytest.exit.Exception, match="SIGTERM came"),
        termination.sigterm_ends_session("a.py::test_x"),
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *args: None], ids=["ignored", "own"])
def test_a_handler_of_the_user_is_left_alone(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    with termination.sigterm_ends_session("a.py::test_x"):
        assert signal.getsignal(signal.SIGTERM) is handler
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_outside_the_main_thread_no_handler_is_set() -> None:
    seen: list[Any] = []

    def run() -> None:
        with termination.sigterm_ends_session("a.py::test_x"):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_forked_child_gives_sigterm_its_meaning_back() -> None:
    with termination.sigterm_ends_session("a.py::test_x"):
        termination.forget()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_user_is_not_forgotten() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    termination.forget()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


class _Item:
    nodeid = "a.py::test_x"
    location = ("a.py", 4, "test_x")

    def __init__(self, terminal: object) -> None:
        plugins = SimpleNamespace(get_plugin={"terminalreporter": terminal}.get)
        self.config = SimpleNamespace(pluginmanager=plugins)


def test_an_interrupt_names_the_test_that_it_met() -> None:
    lines: list[str] = []
    terminal = SimpleNamespace(ensure_newline=lambda: None, write_line=lines.append)
    with pytest.raises(KeyboardInterrupt), termination.interrupted(cast("Any", _Item(terminal))):
        raise KeyboardInterrupt
    assert lines == ["interrupted: a.py::test_x (a.py:5) ran in its own process, which was killed"]


def test_an_interrupt_without_a_terminal_is_an_interrupt_all_the_same() -> None:
    with pytest.raises(KeyboardInterrupt), termination.interrupted(cast("Any", _Item(None))):
        raise KeyboardInterrupt


class _Armed:
    """An item of a session with ``faulthandler_timeout``; "" if that is not armed."""

    def __init__(self, seconds: str, *, without: bool = False) -> None:
        def getini(name: str) -> str:
            assert name == "faulthandler_timeout"
            if without:
                raise ValueError("unknown configuration value")
            return seconds

        self.config = SimpleNamespace(getini=getini)


def test_the_thread_of_a_time_limit_has_ended_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, waited_for = threading.Event(), threading.Event()
    # it ends when it was told to, and not before somebody waits for that
    thread = threading.Thread(target=lambda: (told.wait(), waited_for.wait()))
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *rest: thread.start())
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", told.set)
    monkeypatch.setattr(fault_watchdog, "_THREAD_SECONDS", 300.0)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: waited_for.set())
    monkeypatch.setattr(fault_watchdog, "time", clock)
    stopped: list[object] = []
    monkeypatch.setattr(timeout, "cancel_timer", stopped.append)
    end = fault_watchdog.note()
    assert end is not None
    try:
        faulthandler.dump_traceback_later(60, file=2)
        number = str(thread.native_id)
        termination.stop_time_limit(cast("Any", item := _Armed("60")))
        assert number not in os.listdir("/proc/self/task")
    finally:
        told.set()
        waited_for.set()
        thread.join()
        end()
    assert stopped == [item]


@pytest.mark.parametrize("item", [_Armed(""), _Armed("0"), _Armed("60", without=True)])
def test_a_time_limit_that_has_not_begun_is_not_waited_for(
    item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeout, "cancel_timer", lambda item: None)
    monkeypatch.setattr(fault_watchdog, "cancel", lambda: pytest.fail("waited"))
    termination.stop_time_limit(item)
