"""Which tests are looked at, and what becomes of their reports."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.in_tests import plugin, words  # noqa: E402
from pytest_cudafork.capture.in_tests.listeners import Watching  # noqa: E402
from pytest_cudafork.capture.in_tests.plugin import CaptureHooks, begin  # noqa: E402
from pytest_cudafork.capture.interface.check_names import LOOKED_AT  # noqa: E402
from pytest_cudafork.capture.interface.seen import watch_in_force  # noqa: E402
from pytest_cudafork.check.session import SESSION  # noqa: E402
from pytest_cudafork.compat import torch_internals  # noqa: E402
from pytest_cudafork.compat.torch_graphs.modes import count_modes  # noqa: E402
from pytest_cudafork.settings.options import Settings  # noqa: E402


class Plugins:
    """Stands for the plugin manager."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def has_plugin(self, name: str) -> bool:
        return name in self.names

    def register(self, plugin: object, name: str) -> None:
        self.names.append(name)


def hooks(how: str, **more: Any) -> CaptureHooks:
    stash = pytest.Stash()
    stash[SESSION] = cast(Any, SimpleNamespace(settings=Settings(captures=how, **more)))
    return CaptureHooks(cast(pytest.Config, SimpleNamespace(stash=stash)))


def configuration(how: str = "check") -> Any:
    config = SimpleNamespace(stash=pytest.Stash(), pluginmanager=Plugins())
    config.stash[SESSION] = cast(Any, SimpleNamespace(settings=Settings(captures=how)))
    return config


def item(*marks: pytest.MarkDecorator) -> pytest.Item:
    return cast(pytest.Item, SimpleNamespace(
        stash=pytest.Stash(), nodeid="t.py::test_a", location=("t.py", 3, "test_a"),
        config=SimpleNamespace(stash=pytest.Stash()),
        iter_markers=lambda name=None: [each.mark for each in marks],
        get_closest_marker=lambda name: None,
    ))  # fmt: skip


def run(hook: Any) -> bool:
    """Run a wrapper around nothing; return whether captures were looked at meanwhile."""
    next(hook)
    looked = watch_in_force() is not None
    with pytest.raises(StopIteration):
        hook.send(None)
    return looked


@pytest.mark.parametrize(
    ("how", "marks", "looked"),
    [
        ("check", (), True),
        ("off", (), False),
        ("check", (pytest.mark.check_captures(False),), False),
        ("off", (pytest.mark.check_captures(True),), True),
    ],
)
def test_a_marker_counts_more_than_the_option(how: str, marks: Any, looked: bool) -> None:
    made, test = hooks(how), item(*marks)
    for phase in (
        made.pytest_runtest_setup, made.pytest_runtest_call, made.pytest_runtest_teardown,
    ):  # fmt: skip
        assert run(phase(test)) is looked
    assert watch_in_force() is None


def test_without_torch_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    made = hooks("check")
    assert not run(made.pytest_runtest_call(item()))
    assert "torch" not in sys.modules


class Told:
    """Stands for what listens."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    def take(self) -> dict[str, Any]:
        return self.told


ERROR = {"kind": "stale-data", "what": "it is old", "lines": [], "why": "", "todo": ""}


def reported(told: dict[str, Any], outcome: Any = "passed") -> pytest.TestReport:
    made = hooks("check")
    made._watching = cast(Any, Told(told))
    report = pytest.TestReport("t.py::test_a", ("t.py", 3, "test_a"), {}, outcome, None, "call")
    hook: Any = made.pytest_runtest_makereport(item())
    next(hook)
    with pytest.raises(StopIteration) as stopped:
        hook.send(report)
    found: pytest.TestReport = stopped.value.value
    return found


@pytest.mark.parametrize("end", [KeyboardInterrupt(), pytest.exit.Exception("enough")])
@pytest.mark.parametrize("found", ["errors", "suspicions", "nothing"])
def test_what_was_found_in_a_test_that_ends_the_session_is_reported(
    end: BaseException, found: str
) -> None:
    made, told = hooks("check"), list[pytest.TestReport]()
    test: Any = item()
    test.keywords = {}
    test.ihook = SimpleNamespace(pytest_runtest_logreport=lambda report: told.append(report))
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    made.pytest_sessionfinish(session)
    hook: Any = made.pytest_runtest_call(test)
    next(hook)
    with pytest.raises(type(end)):
        hook.throw(end)
    findings = {} if found == "nothing" else {found: [{**ERROR, "raised": False}]}
    made._watching = cast(Any, Told(findings))
    made.pytest_sessionfinish(session)
    assert [report.outcome for report in told] == {
        "errors": ["failed"], "suspicions": ["passed"], "nothing": [],
    }[found]  # fmt: skip
    assert session.exitstatus == (1 if found == "errors" else 0)


def test_what_a_child_has_found_that_outlived_the_last_test_is_reported() -> None:
    made, told = hooks("check"), list[pytest.TestReport]()
    test: Any = item()
    test.keywords = {}
    test.ihook = SimpleNamespace(pytest_runtest_logreport=lambda report: told.append(report))
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    run(made.pytest_runtest_call(test))
    made.pytest_sessionfinish(session)
    assert told == []
    findings = {"errors": [{**ERROR, "raised": False}]}
    waits = SimpleNamespace(
        a_child_waits=lambda: True, take=lambda: findings, close=lambda: told.clear()
    )
    made._watching = cast(Any, waits)
    made.pytest_sessionfinish(session)
    assert [report.outcome for report in told] == ["failed"]
    assert session.exitstatus == 1
    made.pytest_unconfigure()
    assert told == []


def test_an_error_fails_the_report_and_a_suspicion_does_not() -> None:
    failed = reported({"errors": [{**ERROR, "raised": False}]})
    assert failed.failed
    assert "[stale-data] it is old" in str(failed.longrepr)
    passed = reported({"suspicions": [ERROR]})
    assert passed.passed
    assert getattr(passed, LOOKED_AT) == {"suspicions": [ERROR]}
    assert not hasattr(reported({}), LOOKED_AT)


def test_what_was_found_of_a_refused_replay_is_told_if_the_test_fails() -> None:
    told = {"errors": [{**ERROR, "raised": True}]}
    assert reported(told).passed
    failed = reported(told, "failed")
    assert [name for name, _ in failed.sections] == [words.SECTION]


def test_a_torch_that_is_too_old_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals, "release", lambda: (2, 9))
    words = "captures are looked at with torch 2.10 or later, and this is torch 2.9"
    with pytest.raises(pytest.UsageError, match=f"--cuda-fork-captures=check: {words}"):
        begin(configuration())
    begin(configuration("off"))  # a marker may ask later
    with pytest.raises(RuntimeError, match=words):
        Watching("check")


def test_the_hooks_are_registered_once() -> None:
    config = configuration()
    begin(config)
    begin(config)
    assert config.pluginmanager.names == ["cudafork-captures", "cudafork-captures-summary"]


def test_the_controller_of_xdist_tells_of_tests_that_ask_by_marker(
    pytester: pytest.Pytester,
) -> None:
    pytest.importorskip("xdist")
    controller = pytester.parseconfigure("--dist=load")
    assert controller.pluginmanager.has_plugin("cudafork-captures-summary")
    assert not controller.pluginmanager.has_plugin("cudafork-captures")


@pytest.mark.parametrize("graphs", [None, "software"])
def test_where_a_session_captures_software_graphs_all_is_seen_at_once(
    graphs: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "captures_are_possible", lambda: False)
    monkeypatch.setattr(plugin, "after_captures_are_possible", lambda see: lambda: None)
    made = hooks("check", graphs=graphs)
    before = count_modes()
    phase: Any = made.pytest_runtest_call(item())
    next(phase)
    seen = count_modes() - before
    with pytest.raises(StopIteration):
        phase.send(None)
    assert seen == (0 if graphs is None else 1)
