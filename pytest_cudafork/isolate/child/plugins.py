"""What pytest-timeout and pytest-rerunfailures need in the process of an isolated test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import rerunfailures, timeout
from pytest_cudafork.compat.unpatched import os, threading, traceback
from pytest_cudafork.observe.base.stacks import frames_of_threads
from pytest_cudafork.process.protocol import messages

_NOT_THE_TEST = ("_pytest", "pluggy", "pytest_cudafork")


class TimeLimit:
    """Keeps the time limits of pytest-timeout that a thread keeps: the plugin would exit."""

    def __init__(self, tell: Callable[..., bool]) -> None:
        self._tell = tell

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: Any, settings: Any) -> bool | None:
        """Start a thread that tells of the end of time, then ends this process."""
        main = threading.current_thread() is threading.main_thread()
        if settings.method != "thread" and main:
            return None
        timer = threading.Timer(settings.timeout, self._end, (settings,))
        timer.name = f"time limit of {item.nodeid}"
        timer.daemon = True

        def cancel() -> None:
            timer.cancel()
            timer.join()

        timeout.set_canceller(item, cancel)
        timer.start()
        return True

    def _end(self, settings: Any) -> None:
        if timeout.is_held_by_debugger(settings):
            return
        message = timeout.failure_message(settings.timeout)
        if self._tell(messages.TimedOut(message, _stacks())):
            os._exit(1)


def _stacks() -> str:
    """Return the stacks of all threads but this, from the test on."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in frames_of_threads().items():
        if ident != threading.get_ident():
            lines = traceback.format_list(_of_the_test(frame))
            parts.append(f"Thread {names.get(ident, ident)}:\n{''.join(lines)}")
    return "\n".join(parts)


def _of_the_test(frame: FrameType) -> list[traceback.FrameSummary]:
    """Return the frames that pytest has called, or all where it called none."""
    frames = list(traceback.extract_stack(frame))
    for number in range(len(frames) - 1, -1, -1):
        parts = frames[number].filename.split(os.sep)
        if any(name in parts for name in _NOT_THE_TEST):
            return frames[number + 1 :] or frames
    return frames


class Phases:
    """Tells what phase a test is in, for pytest-rerunfailures reports them when all are over."""

    def __init__(self, tell: Callable[..., bool]) -> None:
        self._tell = tell

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Tell which phase comes next."""
        if call.when in ("setup", "call"):
            called = call.when == "setup" and call.excinfo is None
            self._tell(messages.PhaseBegins("call" if called else "teardown"))


def continue_reruns(item: pytest.Item, told: Mapping[str, int] | None) -> None:
    """Let pytest-rerunfailures go on counting where the parent stands.

    ``told`` is what the parent's ``other_plugins.reruns_for`` returned.
    """
    if told is not None:
        rerunfailures.continue_counts(item, told["runs"], told["session"])
