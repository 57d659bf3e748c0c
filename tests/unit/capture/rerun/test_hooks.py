"""Which tests are run once more, and what their reports say of it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.capture.rerun import child, verdict
from pytest_cudafork.capture.rerun.hooks import ReplayAudit, begin
from pytest_cudafork.capture.rerun.orders import CHANGED, IDLE, PROPERTY, Counted, Order
from pytest_cudafork.capture.rerun.verdict import Again
from pytest_cudafork.compat import pytest_internals
from tests.unit.isolate.session import Heard, items_of

SPOILED = Counted(1, 1)
PASSED = ["start", "setup passed", "call passed", "teardown passed", "finish"]


class _Stage:
    """A session of one test under audit; ``answers`` are the outcomes of its other runs."""

    def __init__(self, item: pytest.Item, monkeypatch: pytest.MonkeyPatch) -> None:
        self.item, self.heard = item, Heard(item.config)
        self.orders: list[Order] = []
        self.answers: dict[str, Again | Exception] = {}
        self.audit: Any = item.config.pluginmanager.get_plugin("cudafork-replay-audit")
        monkeypatch.setattr(child, "run_again", self._run_again)

    def _run_again(self, item: pytest.Item, order: Order, children: Any, limit: float) -> Again:
        assert item is self.item
        assert limit >= 120
        self.orders.append(order)
        answer = self.answers[order.how]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, counted: Counted) -> list[list[tuple[str, object]]]:
        """Run the test, whose replays come to this; return the properties of its reports."""
        self.audit.replays.begin = lambda order: None
        self.audit.replays._counted = counted
        self.item.config.hook.pytest_runtest_protocol(item=self.item, nextitem=None)
        return [report.user_properties for report in self.heard.reports]


@pytest.fixture
def stage(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> _Stage:
    source = getattr(request, "param", "def test_it(): pass")
    return _Stage(items_of(pytester, source, "--cuda-fork-captures=audit")[0], monkeypatch)


def test_a_test_without_replays_runs_once(stage: _Stage) -> None:
    assert stage.run(Counted()) == [[], [], []]
    assert stage.orders == []


def test_a_test_that_only_replays_in_other_threads_is_not_judged(stage: _Stage) -> None:
    _, _, [(_, text)] = stage.run(Counted(elsewhere=1))
    assert str(text).startswith("not judged: other threads")
    assert stage.orders == []


def test_a_test_that_passes_with_idle_replays_is_said_to_check_nothing(stage: _Stage) -> None:
    stage.answers = {IDLE: Again(True, SPOILED)}
    setup, call, teardown = stage.run(Counted(3))
    assert (setup, call) == ([], [])
    [(name, text)] = teardown
    assert name == verdict.PROPERTY
    assert str(text).startswith("checks nothing: it passes though its 3 replays do nothing")
    assert stage.orders == [Order(IDLE, 100)]
    assert stage.heard.calls == [
        "start",
        "setup passed",
        "call passed",
        "teardown passed",
        "finish",
    ]


def test_inputs_are_changed_where_the_test_changes_none(stage: _Stage) -> None:
    stage.answers = {IDLE: Again(False, SPOILED), CHANGED: Again(False, SPOILED)}
    assert stage.run(Counted(20)) == [[], [], [(verdict.PROPERTY, "notices")]]
    assert stage.orders == [Order(IDLE, 200), Order(CHANGED, 200)]


def test_nothing_is_run_again_where_a_debugger_would_start(stage: _Stage) -> None:
    stage.item.config.option.usepdb = True
    [(_, text)] = stage.run(Counted(1))[2]
    assert str(text).startswith("not judged: a debugger")
    assert stage.orders == []


def test_inputs_are_left_alone_where_the_test_changes_them(stage: _Stage) -> None:
    stage.answers = {IDLE: Again(False, SPOILED)}
    assert stage.run(Counted(1, changes=True))[2] == [(verdict.PROPERTY, "notices")]


def test_what_goes_wrong_is_told_and_changes_no_outcome(stage: _Stage) -> None:
    stage.answers = {IDLE: ValueError("the disk is full")}
    [(_, text)] = stage.run(Counted(1))[2]
    assert text == "not judged: it could not be run once more: ValueError: the disk is full"
    assert stage.heard.calls == [
        "start",
        "setup passed",
        "call passed",
        "teardown passed",
        "finish",
    ]


@pytest.mark.parametrize(
    "stage",
    [
        "def test_it(): assert 0",
        "import pytest\n@pytest.mark.xfail\ndef test_it(): assert 0",
        "import pytest\n@pytest.mark.xfail\ndef test_it(): pass",
        "import pytest\n@pytest.fixture\ndef a():\n yield\n assert 0\ndef test_it(a): pass",
    ],
    indirect=True,
    ids=["fails", "xfails", "xpasses", "fails in the teardown"],
)
def test_a_test_that_did_not_plainly_pass_runs_once(stage: _Stage) -> None:
    assert stage.run(Counted(1)) == [[], [], []]
    assert stage.orders == []


def test_reports_of_other_processes_are_listed(stage: _Stage) -> None:
    """As pytest-xdist's controller has them, which runs no test."""
    told = [("t.py::a", "checks nothing: it passes"), ("t.py::b", "notices"), ("t.py::c", "")]
    for nodeid, text in told:
        report = pytest.TestReport(
            nodeid, ("t.py", 1, "a"), {}, "passed", None, "teardown",
            user_properties=[(verdict.PROPERTY, text)] if text else [],
        )  # fmt: skip
        stage.audit.pytest_runtest_logreport(report)

    class Terminal:
        lines: tuple[str, ...] = ()

        def section(self, title: str) -> None:
            self.lines += (title,)

        write_line = section

    terminal = Terminal()
    stage.audit.pytest_terminal_summary(terminal)
    assert terminal.lines[:3] == (
        "tests of replays that cannot fail",
        "2 tests that replay a graph and passed: 1 cannot fail, 0 not judged",
        "t.py::a checks nothing: it passes",
    )


def test_the_process_of_one_test_leaves_it_to_the_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_CUDAFORK_ISOLATED", "1")
    item = items_of(pytester, "def test_it(): pass", "--cuda-fork-captures=audit")[0]
    stage = _Stage(item, monkeypatch)
    assert stage.run(Counted(2, 1)) == [[], [(PROPERTY, "2 1 0")], []]
    assert stage.orders == []


def test_the_hooks_are_there_once(stage: _Stage) -> None:
    begin(stage.item.config)
    found: Any = stage.item.config.pluginmanager.get_plugin("cudafork-replay-audit")
    assert isinstance(found, ReplayAudit)
    assert found is stage.audit
    assert pytest_internals.is_anything_set_up(stage.item.session) is False
