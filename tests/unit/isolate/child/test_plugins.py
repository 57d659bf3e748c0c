"""Tests of other plugins' parts in a child."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import unpatched
from pytest_cudafork.isolate.child import plugins
from pytest_cudafork.process.protocol import messages


@pytest.mark.parametrize("runs", [0, 2])
def test_reruns_go_on_where_the_parent_stands(runs: int) -> None:
    class Counts:
        _suite_rerun_count = 1

        def get_test_failures(self, name: str) -> int:
            return 0

        def get_suite_reruns(self) -> int:
            return self._suite_rerun_count

        def increment_suite_reruns(self) -> None:
            self._suite_rerun_count += 1

    class Config:
        failures_db = Counts()

    item: Any = SimpleNamespace(config=Config(), nodeid="x")
    plugins.continue_reruns(item, {"runs": runs, "session": 5})
    assert item.config.failures_db.get_test_failures("x") == runs
    assert item.config.failures_db._suite_rerun_count == 5
    plugins.continue_reruns(item, None)


class _Parent:
    """Takes what is told; nobody listens unless ``listens``."""

    def __init__(self, *, listens: bool = True) -> None:
        self.listens = listens
        self.told: list[Any] = []

    def tell(self, message: messages.Message) -> bool:
        self.told.append(message)
        return self.listens


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A pytest-timeout is loaded; ``runs`` says whether it sees a debugger.

    It looks for one when ``waits`` is set: the thread of a limit that is over goes no further.
    """
    state = SimpleNamespace(runs=False, waits=threading.Event())

    def is_debugging() -> bool:
        state.waits.wait(300)
        return bool(state.runs)

    plugin: Any = SimpleNamespace(is_debugging=is_debugging, PYTEST_FAILURE_MESSAGE="over %.1fs")
    monkeypatch.setitem(sys.modules, "pytest_timeout", plugin)
    return state


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses with which this process would have ended."""
    statuses: list[int] = []
    monkeypatch.setattr(unpatched.os, "_exit", statuses.append)
    return statuses


def _settings(seconds: float, method: str = "thread", *, detects: bool = True) -> Any:
    return SimpleNamespace(timeout=seconds, method=method, disable_debugger_detection=not detects)


def _item() -> Any:
    return SimpleNamespace(nodeid="test_a.py::test_a")


def _timers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("time limit of")]


def _wait_until_over(debugger: SimpleNamespace) -> None:
    timers = _timers()
    debugger.waits.set()  # the stack of this thread is the same from here on
    for timer in timers:
        timer.join(300)


def test_a_limit_that_a_signal_keeps_is_left_to_pytest_timeout() -> None:
    parent = _Parent()
    assert (
        plugins.TimeLimit(parent.tell).pytest_timeout_set_timer(_item(), _settings(9, "signal"))
        is None
    )
    assert _timers() == []


def test_no_signal_comes_to_other_threads_so_their_limit_is_kept_by_a_thread() -> None:
    item = _item()
    results: list[bool | None] = []

    def in_thread() -> None:
        limit = plugins.TimeLimit(_Parent().tell)
        results.append(limit.pytest_timeout_set_timer(item, _settings(1000, "signal")))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert results == [True]
    assert [one.name for one in _timers()] == ["time limit of test_a.py::test_a"]
    item.cancel_timeout()
    assert _timers() == []


def test_a_limit_that_is_over_is_told_with_the_stacks_of_the_test_and_the_process_ends(
    debugger: SimpleNamespace, left: list[int]
) -> None:
    parent = _Parent()
    running, over = threading.Event(), threading.Event()

    def helper_of_the_test() -> None:
        running.set()
        over.wait(300)

    helper = threading.Thread(target=helper_of_the_test, name="the helper")
    helper.start()
    running.wait(300)
    assert plugins.TimeLimit(parent.tell).pytest_timeout_set_timer(_item(), _settings(0.01))
    _wait_until_over(debugger)
    over.set()
    helper.join()
    assert left == [1]
    (message,) = parent.told
    assert isinstance(message, messages.TimedOut)
    assert message.text == "over 0.0s"
    assert "Thread the helper:" in message.stacks
    assert "in helper_of_the_test" in message.stacks
    assert "Thread MainThread:" in message.stacks
    assert "in _wait_until_over" in message.stacks
    assert "_pytest" not in message.stacks.replace(__file__, "")  # from the test on
    assert "time limit of" not in message.stacks  # nor the thread that tells


def test_where_nobody_listens_the_process_goes_on(
    debugger: SimpleNamespace, left: list[int]
) -> None:
    parent = _Parent(listens=False)
    plugins.TimeLimit(parent.tell).pytest_timeout_set_timer(_item(), _settings(0.01))
    _wait_until_over(debugger)
    assert len(parent.told) == 1
    assert left == []


@pytest.mark.parametrize("detects", [True, False])
def test_under_a_debugger_no_limit_counts_unless_it_is_asked_for(
    debugger: SimpleNamespace, left: list[int], detects: bool
) -> None:
    debugger.runs = True
    parent = _Parent()
    settings = _settings(0.01, detects=detects)
    plugins.TimeLimit(parent.tell).pytest_timeout_set_timer(_item(), settings)
    _wait_until_over(debugger)
    assert (len(parent.told), left) == ((0, []) if detects else (1, [1]))


def test_of_frames_that_nobody_of_pytest_has_called_all_are_shown() -> None:
    frames = [SimpleNamespace(filename=f"/{name}.py") for name in ("thread", "library")]
    inner = SimpleNamespace(filename="/site-packages/_pytest/runner.py")
    test = SimpleNamespace(filename="/tests/test_a.py")
    with pytest.MonkeyPatch.context() as patch:
        for stack, shown in (
            (frames, frames),
            ([*frames, inner, test], [test]),
            ([*frames, inner], [*frames, inner]),  # between two phases
        ):
            patch.setattr(unpatched.traceback, "extract_stack", lambda frame, stack=stack: stack)
            assert plugins._of_the_test(sys._getframe()) == shown


@pytest.mark.parametrize(
    ("when", "failed", "phases"),
    [
        ("setup", False, ["call"]),
        ("setup", True, ["teardown"]),
        ("call", False, ["teardown"]),
        ("call", True, ["teardown"]),
        ("teardown", False, []),
    ],
)
def test_the_parent_is_told_which_phase_comes_next(
    when: Any, failed: bool, phases: list[str]
) -> None:
    def run() -> None:
        if failed:
            raise ValueError

    parent = _Parent()
    plugins.Phases(parent.tell).pytest_runtest_makereport(pytest.CallInfo.from_call(run, when))
    assert parent.told == [messages.PhaseBegins(one) for one in phases]
