"""One more run of a test, whose child a stand-in plays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.capture.rerun.child import run_again
from pytest_cudafork.capture.rerun.orders import IDLE, PROPERTY, Counted, Order
from pytest_cudafork.capture.rerun.verdict import Again
from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate.child.reporter import ReportPacker
from pytest_cudafork.isolate.passed_phases import pack_phase
from pytest_cudafork.process.fork_server_client import NoServerError
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.signals import ChildSignal
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import CHILD_ENV
from tests.unit.isolate.session import Heard, items_of

OVER = messages.TestOver(last=True)
ORDER = Order(IDLE, 9)


class _Stage:
    """A test, and the children that it is given: lists of what each of them says."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.heard = Heard(item.config)
        self.sigchld = ChildSignal()
        self.script: dict[str, Any] = {}
        self.asked: list[tuple[str, str]] = []
        self.answers: list[messages.Message] = []
        self.ended: list[str] = []
        self.why_not: object = None
        self._packer = ReportPacker(item.config)
        self._packer.begin()

    def report(self, when: str, outcome: str = "passed", replays: str = "") -> messages.Report:
        report = pytest.TestReport(
            nodeid=self.item.nodeid,
            location=self.item.location,
            keywords={},
            outcome=outcome,  # type: ignore[arg-type]
            longrepr=None,
            when=when,  # type: ignore[arg-type]
            user_properties=[(PROPERTY, replays)] if replays else [],
        )
        return messages.Report(self._packer.pack(report))

    def run(self) -> Again:
        children: Any = self
        return run_again(self.item, ORDER, children, 60.0)

    # -- what ``Children`` has ---------------------------------------------------------------------

    def why_not_forked(self, item: pytest.Item) -> object:
        return self.why_not

    def process_for(self, item: pytest.Item, following: None, method: Any) -> Any:
        yield from ()
        self.asked.append((method.name, item.stash[CHILD_ENV][environment.REPLAYS]))
        said = self.script[method.name]
        if isinstance(said, Exception):
            raise said

        def watch(take: Any, limit: float, *, until_done: bool) -> object:
            for message in said:
                if message is None:
                    return "it died"
                take(message, [])
            return None

        return SimpleNamespace(
            order=self.answers.append,
            close=lambda: self.ended.append("closed"),
            supervisor=SimpleNamespace(watch=watch),
        )

    def keep(self, process: Any, following: None) -> None:
        self.ended.append("kept")


@pytest.fixture
def stage(pytester: pytest.Pytester) -> _Stage:
    return _Stage(items_of(pytester, "def test_it(): pass")[0])


def test_a_test_that_passes_again(stage: _Stage) -> None:
    reports = [stage.report("setup"), stage.report("call", replays="2 2 0")]
    stage.script["forkserver"] = [*reports, stage.report("teardown"), OVER, messages.Done()]
    assert stage.run() == Again(True, Counted(2, 2))
    assert stage.asked == [("forkserver", "idle 9")]
    assert stage.ended == ["kept"]
    assert stage.heard.calls == []  # nobody hears of these reports
    assert stage.item.stash[CHILD_ENV] == {}


def test_phases_that_are_told_by_their_times_alone(stage: _Stage) -> None:
    told = [
        messages.Passed(pack_phase(pytest.TestReport("", ("", 0, ""), {}, "passed", None, when)))
        for when in ("setup", "teardown")
    ]
    said = [told[0], stage.report("call", replays="2 2 0"), told[1], OVER, messages.Done()]
    stage.script["forkserver"] = said
    assert stage.run() == Again(True, Counted(2, 2))


def test_a_test_that_fails_when_its_replays_are_spoiled(stage: _Stage) -> None:
    reports = [stage.report("setup"), stage.report("call", "failed", "1 1 0")]
    stage.script["forkserver"] = [*reports, stage.report("teardown"), OVER]
    assert stage.run() == Again(False, Counted(1, 1))


def test_a_process_that_dies_has_noticed(stage: _Stage) -> None:
    stage.script["forkserver"] = [stage.report("setup"), None]
    assert stage.run() == Again(False, Counted())
    assert stage.ended == ["closed"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["setup failed"], "run once more, its fixtures cannot be set up"),
        (["setup", "call skipped"], "run once more, it is skipped"),
        (["setup", "call failed"], "run once more, it fails before it replays a graph"),
        ([messages.Interrupt()], "run once more, it ends the session"),
        ([messages.InternalError("one\ntwo")], "run once more, two"),
    ],
)
def test_what_says_nothing_of_the_replays_is_not_judged(
    stage: _Stage, said: list[Any], why: str
) -> None:
    told = [stage.report(*each.split()) if isinstance(each, str) else each for each in said]
    stage.script["forkserver"] = [*told, OVER]
    again = stage.run()
    assert (again.passed, again.why) == (None, why)


def test_what_waits_to_be_shown_is_answered(stage: _Stage) -> None:
    waits = messages.Report(stage.report("setup").data, wait=True)
    stage.script["forkserver"] = [waits, OVER]
    stage.run()
    assert stage.answers == [messages.Shown()]


@pytest.mark.parametrize("way", ["refused", "no server", "missing"])
def test_a_fresh_interpreter_runs_what_the_fork_server_cannot(stage: _Stage, way: str) -> None:
    stage.why_not = "it touches CUDA" if way == "refused" else None
    missing = [messages.TestMissing([], []), OVER]
    stage.script["forkserver"] = NoServerError("gone") if way == "no server" else missing
    passed = [stage.report(when) for when in ("setup", "call", "teardown")]
    stage.script["spawn"] = [*passed, OVER]
    assert stage.run().passed is True
    assert stage.asked[-1][0] == "spawn"


def test_a_test_that_nobody_finds_is_not_judged(stage: _Stage) -> None:
    missing = [messages.TestMissing([], []), OVER]
    stage.script = {"forkserver": missing, "spawn": missing}
    assert stage.run() == Again(None, why="a process of its own did not find the test")


def test_a_process_that_cannot_be_had_is_told(stage: _Stage) -> None:
    stage.script["forkserver"] = ChildError("no memory")
    again = stage.run()
    assert again.passed is None
    assert again.why == "no process could be started to run it once more: no memory"
