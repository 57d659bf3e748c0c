"""What the guard refuses, and where it stands in for ``os.fork``."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check.guard import (
    ForkDecision,
    Rules,
    allowed_module,
    goes_on_to_exec,
    install,
    names_exec,
    starts_program,
)
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.driver.lineage import process_lineage
from pytest_cudafork.observe.driver.probe import CudaState, Driver, Verdict
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.settings import environment


class Observed:
    """A process in this state, and the forks that were noted."""

    simulated = True

    def __init__(self, verdict: Verdict) -> None:
        self.answer = CudaState(verdict, Driver.UNKNOWN, None, None, "it was said")
        self.forks: list[dict[str, Any]] = []
        self.ledger = History()
        self.unwritten: list[dict[str, Any]] = []
        """What another thread is about to write."""

    def settle(self) -> None:
        """Let the thread write."""
        self.ledger.add(self.unwritten)
        self.unwritten = []

    def state(self) -> CudaState:
        """Return the state."""
        return self.answer

    def note_fork(self, **fork: Any) -> str:
        """Note a fork."""
        self.forks.append(fork)
        return "1-1"

    def history(self) -> History:
        """Return the ledger, which is empty at first."""
        return self.ledger


def fork() -> int:
    """Fork, and let the child end at once; return its status."""
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture(autouse=True)
def no_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """No marker of this very test allows a fork."""
    monkeypatch.delenv(environment.FORK_OK, raising=False)


def test_a_detailed_watch_notes_forks_of_a_clean_process_too() -> None:
    observed = Observed(Verdict.CLEAN)
    with install(Rules(observed, True, detailed=True)):
        assert fork() == 7
    assert [one["verdict"] for one in observed.forks] == ["clean"]


def test_a_clean_process_forks_and_nothing_is_noted() -> None:
    observed = Observed(Verdict.CLEAN)
    with install(Rules(observed, True)):
        assert fork() == 7
    assert not observed.forks


def a_touch(line: int) -> dict[str, Any]:
    """Return the record of a touch in this process."""
    here = {"k": "touch", "id": "1", "pid": os.getpid(), "t": 1, "entry": "cuInit"}
    return {**here, "stack": [["/src/engine.py", line, "probe", 3]]}


def test_the_touch_of_another_thread_that_is_being_written_is_told() -> None:
    observed = Observed(Verdict.INITIALIZED)
    observed.unwritten.append(a_touch(3))
    with install(Rules(observed, True)), pytest.raises(CudaForkError, match=r"engine\.py:3"):
        os.fork()


def test_what_accepts_a_fork_knows_the_touch_that_is_being_written() -> None:
    observed = Observed(Verdict.INITIALIZED)
    observed.unwritten.append(a_touch(3))
    with install(Rules(observed, True, accepted=lambda: "x" * len(observed.ledger.touches))):
        assert fork() == 7
    assert [one["verdict"] for one in observed.forks] == ["accepted"]


def test_a_fork_is_refused_before_it_happens_and_told_in_full() -> None:
    observed = Observed(Verdict.INITIALIZED)
    with install(Rules(observed, True)), pytest.raises(CudaForkError) as raised:
        fork()
    assert "os.fork was called by" in str(raised.value)
    assert "something that was not seen (it was said)" in str(raised.value)
    (noted,) = observed.forks
    assert (noted["api"], noted["verdict"]) == ("os.fork", "guarded")
    assert noted["frame"].f_code.co_name == "fork"
    assert fork() == 7


@pytest.mark.parametrize(
    ("verdict", "refuse", "decision", "rule"),
    [
        (Verdict.INITIALIZED, True, ForkDecision.GUARDED, ""),
        (Verdict.POISONED, True, ForkDecision.GUARDED, ""),
        (Verdict.INITIALIZED, False, ForkDecision.WATCHED, "level poison"),
        (Verdict.NOT_OBSERVABLE, True, ForkDecision.UNKNOWN, "it was said"),
    ],
)
def test_each_state_has_its_decision(
    verdict: Verdict, refuse: bool, decision: ForkDecision, rule: str
) -> None:
    rules = Rules(Observed(verdict), refuse)
    assert rules.decide(rules.observer.state(), sys._getframe()) == (decision, rule)


def test_a_fork_that_is_only_watched_happens_and_is_noted() -> None:
    observed = Observed(Verdict.INITIALIZED)
    with install(Rules(observed, False)):
        assert fork() == 7
    assert observed.forks[0]["verdict"] == "watched"


@pytest.mark.parametrize("reason", ["the child never touches CUDA", ""])
def test_the_marker_in_force_allows_with_its_reason(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.FORK_OK, reason)
    rules = Rules(Observed(Verdict.INITIALIZED), True)
    decided = rules.decide(rules.observer.state(), None)
    assert decided == (ForkDecision.ALLOWED, f"marker cuda_fork_ok: {reason}")


def test_code_of_an_allowed_module_may_fork() -> None:
    rules = Rules(Observed(Verdict.INITIALIZED), True, (__name__,))
    decided = rules.decide(rules.observer.state(), sys._getframe())
    assert decided == (ForkDecision.ALLOWED, f"code of {__name__} may fork")


@pytest.mark.parametrize("name", ["data", "data.worker", None, 7])
def test_a_prefix_allows_a_package_and_nothing_else(name: object) -> None:
    frame: Any = SimpleNamespace(f_globals={"__name__": name}, f_back=None)
    assert allowed_module(frame, ("data",)) == ("data" if str(name).startswith("data") else "")
    assert allowed_module(frame, ("dat", "worker")) == ""
    assert allowed_module(None, ("data",)) == ""


def test_names_that_modules_have_taken_are_guarded_and_given_back() -> None:
    taken = ModuleType("cudafork_taken")
    vars(taken).update(make_process=os.fork, other=print)
    sys.modules["cudafork_taken"] = taken
    sys.modules["cudafork_odd"] = SimpleNamespace(fork=os.fork)  # type: ignore[assignment]
    original = os.fork
    try:
        with install(Rules(Observed(Verdict.INITIALIZED), True)):
            assert taken.make_process is os.fork is not original
            with pytest.raises(CudaForkError):
                taken.make_process()
            vars(taken)["later"] = os.fork
        assert taken.make_process is taken.later is os.fork is original
    finally:
        del sys.modules["cudafork_taken"], sys.modules["cudafork_odd"]


def test_a_fork_past_the_guard_is_noted_unless_it_goes_on_to_exec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lineage = process_lineage()
    monkeypatch.setattr(lineage, "unclean", lambda: True)
    monkeypatch.setattr(lineage, "on_poisoned_child", None)
    kept = [os.fork]
    observed = Observed(Verdict.INITIALIZED)
    with install(Rules(observed, True)):
        pid = kept[0]()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        subprocess.run(["true"], check=True, preexec_fn=os.getpid)
    (noted,) = observed.forks
    assert (noted["verdict"], noted["frame"].f_code.co_filename) == ("unguarded", __file__)
    watched = Observed(Verdict.INITIALIZED)
    with install(Rules(watched, False)):
        pid = kept[0]()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    assert watched.forks[0]["verdict"] == "watched"


@pytest.mark.parametrize(
    ("between", "fork"), [("pty", "fork"), ("gevent.os", "fork_and_watch")], ids=["pty", "gevent"]
)
@pytest.mark.parametrize(
    ("module", "function", "starts"),
    [
        ("ptyprocess.ptyprocess", "spawn", True),
        ("ptyprocess.ptyprocess", "fork", False),
        ("joblib.externals.loky.backend.fork_exec", "fork_exec", True),
        ("loky.backend.fork_exec", "fork_exec", True),
        ("gevent.subprocess", "_execute_child", True),
        ("gevent.subprocess", "run", False),
        ("twisted.internet.process", "_fork", True),
        ("invoke.runners", "start", True),
        ("sh", "__init__", True),
        ("mine", "spawn", False),
        (7, "spawn", False),
    ],
)
def test_functions_that_start_programs_are_known(
    module: object, function: str, starts: bool, between: str, fork: str
) -> None:
    found: list[bool] = []
    other = {"__name__": between, "look": lambda: found.append(starts_program(sys._getframe(1)))}
    exec(f"def {fork}(): look()", other)
    names: dict[str, Any] = {"__name__": module, "fork_for_me": other[fork]}
    exec(f"def {function}(): fork_for_me()", names)
    names[function]()
    assert found == [starts]
    assert not starts_program(None)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("look()\n    os.execv('/bin/true', [])", True),
        ("look()\n    execlpe('true')", True),
        ("pty_fork()\n    os.execvp('true', [])", True),
        ("look()\n    exec('')\n    executor = execution = None", False),
        ("look_for_me()\n    os.execv('/bin/true', [])", False),
    ],
)
def test_a_function_that_names_exec_may_fork(code: str, names: bool) -> None:
    rules = Rules(Observed(Verdict.INITIALIZED), True)
    found: list[tuple[ForkDecision, str]] = []

    class EndOfTest(Exception):
        """Raised in place of what follows the fork."""

    def look() -> None:
        found.append(rules.decide(rules.observer.state(), sys._getframe(1)))
        raise EndOfTest

    other: dict[str, Any] = {"__name__": "pty", "look": look}
    exec("def fork(): look()", other)
    helper: dict[str, Any] = {"__name__": "helper", "look": look}
    exec("def look_for_me(): look()", helper)
    own: dict[str, Any] = {"__name__": "own", "look": look, "os": os, "pty_fork": other["fork"]}
    own["look_for_me"] = helper["look_for_me"]
    exec(f"def start():\n    {code}", own)
    with pytest.raises(EndOfTest):
        own["start"]()
    allowed = (ForkDecision.ALLOWED, "start goes on to exec")
    assert found == [allowed if names else (ForkDecision.GUARDED, "")]
    assert names_exec(None) == ""


def test_under_uvloop_a_fork_past_the_guard_starts_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = sys._getframe()
    loops: list[object] = []

    class Loop:
        __module__ = "uvloop.loop"

    def get_running_loop() -> object:
        if not loops:
            raise RuntimeError("no running event loop")
        return loops[-1]

    monkeypatch.setitem(sys.modules, "asyncio", SimpleNamespace(get_running_loop=get_running_loop))
    monkeypatch.delitem(sys.modules, "uvloop", raising=False)
    assert not goes_on_to_exec(frame)
    monkeypatch.setitem(sys.modules, "uvloop", ModuleType("uvloop"))
    assert not goes_on_to_exec(frame)
    loops.append(SimpleNamespace())
    assert not goes_on_to_exec(frame)
    loops.append(Loop())
    assert goes_on_to_exec(frame)
    monkeypatch.delitem(sys.modules, "asyncio")
    assert not goes_on_to_exec(frame)
