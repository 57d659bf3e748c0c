"""Tests of one whole test in a child; a forked stand-in says what the child of a test might."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate.child.reporter import ReportPacker
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session import other_plugins, run_test
from pytest_cudafork.isolate.session.children import ItemProcess, none_known
from pytest_cudafork.process import launch, supervision, termination
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.fork_server_client import NoServerError
from pytest_cudafork.process.forking.short_stack import Steps, perform
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.server_process import ForkRefusedError
from pytest_cudafork.process.signals import ChildSignal
from pytest_cudafork.settings import METHODS
from pytest_cudafork.settings.markers import CHILD_ENV
from tests.support.isolation import is_gone
from tests.unit.isolate.session import Heard, items_of

PASSED = ["start", "setup passed", "call passed", "teardown passed", "finish"]
OVER = messages.TestOver(last=True)
FORKSERVER = Method("forkserver", 300.0)


class _Stage:
    """A test, the children that it is given, and what the session hears of it."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self.item, self.other = items
        self.heard = Heard(self.item.config)
        self.kept: list[pytest.Item | None] = []
        self.asked: list[tuple[object, ...]] = []
        self.pids: list[int] = []
        self.process: ItemProcess | None = None
        self.no_server: Exception | None = None
        self.no_room: list[OSError] = []
        """What is in the way of the next children, until room is made."""
        self.rooms_made = 0
        self.sigchld = ChildSignal()
        self._scripts: list[Callable[[Channel], None]] = []
        self._packer = ReportPacker(self.item.config)
        self._packer.begin()

    def child(self, *steps: Any) -> None:
        """Let the next child take these steps: messages that it sends, functions that it calls."""

        def body(channel: Channel) -> None:
            for step in steps:
                if isinstance(step, messages.Message):
                    channel.send(step)
                else:
                    step()

        self._scripts.append(body)

    def report(self, when: str, **changes: Any) -> messages.Report:
        """Return the message for a report that says that a phase passed."""
        given: dict[str, Any] = {
            "nodeid": self.item.nodeid,
            "location": self.item.location,
            "keywords": {},
            "outcome": "passed",
            "longrepr": None,
            "when": when,
            **changes,
        }
        return messages.Report(self._packer.pack(pytest.TestReport(**given)))

    def reports(self) -> list[messages.Report]:
        """Return those of a test that passes."""
        return [self.report(when) for when in ("setup", "call", "teardown")]

    # -- what ``Children`` has ---------------------------------------------------------------------

    def process_for(self, *asked: Any) -> Steps[ItemProcess]:
        yield from ()
        self.asked.append(asked)
        if self.no_server is not None and asked[2].name == "forkserver":
            raise self.no_server
        if self.no_room:
            raise self.no_room[-1]
        if not self._scripts:
            raise ChildError("there are none left")
        script = self._scripts.pop(0)

        def body(channel: Channel, stacks_fd: int) -> NoReturn:
            script(channel)
            os._exit(0)

        running = launch.start_fork(body)
        self.pids.append(running.pid)
        # a short time limit begins with its first word
        select.select([running.sock], [], [], 300.0)
        output = os.memfd_create("output")
        os.write(output, b"last words")
        files = [os.memfd_create("kept"), os.memfd_create("passed"), output]
        self.process = ItemProcess(supervision.Supervisor(running), asked[2], "", files)
        return self.process

    def make_room(self) -> None:
        self.rooms_made += 1
        self.no_room = self.no_room[:-1]

    def keep(self, process: ItemProcess, following: pytest.Item | None) -> None:
        self.kept.append(following)
        process.close()
        process.supervisor.kill()

    def isolate(
        self,
        method: Method = FORKSERVER,
        following: pytest.Item | None = None,
    ) -> None:
        children: Any = self
        perform(run_test.isolate(self.item, self.other, method, children, following))


CALL_DIED = ["start", "setup passed", "call failed", "teardown passed", "finish"]


@pytest.fixture
def stage(pytester: pytest.Pytester) -> _Stage:
    """A test, and one that follows it."""
    return _Stage(items_of(pytester, "def test_it(): pass\ndef test_other(): pass"))


def test_a_test_is_told_of_as_if_it_had_run_here(stage: _Stage) -> None:
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate()
    assert stage.heard.calls == PASSED
    assert stage.asked == [(stage.item, None, FORKSERVER, none_known)]
    assert stage.kept == [None]


def test_a_test_that_is_refused_gets_no_process(stage: _Stage) -> None:
    stage.isolate(Method("fork", refusal="Nothing was forked."))
    assert stage.heard.calls == ["start", "setup failed", "teardown passed", "finish"]
    assert "Nothing was forked." in stage.heard.reports[0].longreprtext
    assert stage.asked == []


def test_a_process_that_cannot_be_had_is_a_failed_set_up(stage: _Stage) -> None:
    stage.isolate()
    assert stage.heard.calls == ["start", "setup failed", "teardown passed", "finish"]
    words = "no process could be started for this test by forkserver: there are none left"
    assert words in stage.heard.reports[0].longreprtext


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_process_takes_the_place_of_those_that_no_test_has(
    stage: _Stage, method: str, number: int
) -> None:
    stage.no_room = [OSError(number, os.strerror(number))]
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate(Method(method))
    assert stage.heard.calls == PASSED
    assert stage.rooms_made == 1


def test_where_there_is_no_room_left_to_make_the_test_is_told_of_that(stage: _Stage) -> None:
    full = OSError(errno.EMFILE, "Too many open files")
    stage.no_room = [full, full]
    stage.isolate()
    assert stage.heard.calls == ["start", "setup failed", "teardown passed", "finish"]
    assert "by forkserver: [Errno 24] Too many" in stage.heard.reports[0].longreprtext
    assert stage.rooms_made == 1


@pytest.mark.parametrize("error", [NoServerError, ForkRefusedError])
def test_a_test_that_the_fork_server_has_no_process_for_is_spawned(
    stage: _Stage, error: type[Exception]
) -> None:
    stage.no_server = error("it has gone")
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate()
    assert stage.heard.calls == PASSED
    methods: list[Any] = [asked[2] for asked in stage.asked]
    assert [method.name for method in methods] == ["forkserver", "spawn"]
    report: Any = stage.heard.reports[0]
    assert (report.isolation, report.isolation_why) == ("spawn", "not forkserver: it has gone")


def test_a_child_goes_on_with_the_next_test_of_its_group(stage: _Stage) -> None:
    stage.child(*stage.reports(), messages.TestOver(last=False), lambda: time.sleep(100))
    stage.isolate(following=stage.other)
    assert stage.heard.calls == PASSED
    assert stage.kept == [stage.other]


def test_a_child_that_will_run_no_other_is_not_kept_for_one(stage: _Stage) -> None:
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate(following=stage.other)
    assert stage.kept == [None]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([lambda: os.kill(os.getpid(), signal.SIGSEGV)], "SIGSEGV in call"),
        ([lambda: os._exit(3)], "exit status 3 in call"),
        ([lambda: time.sleep(100)], "time limit of 0.3 s exceeded in call"),
        ([OVER, messages.Done()], "no report of call"),
        ([messages.InternalError("of pytest"), OVER, messages.Done()], "of pytest"),
        ([messages.Returned(None, "1")], "there are no messages of kind 'returned'"),
    ],
    ids=["signal", "exit", "hang", "no report", "internal error", "malformed"],
)
def test_an_end_that_should_not_be_fails_the_phase_with_the_output(
    stage: _Stage, steps: list[Any], words: str
) -> None:
    stage.child(stage.report("setup", sections=[("Captured stdout setup", "text")]), *steps)
    stage.isolate(Method("forkserver", 0.3 if "time limit" in words else 300.0))
    assert stage.heard.calls == CALL_DIED
    report = stage.heard.reports[-2]
    assert words in report.longreprtext
    assert report.sections == [
        ("Captured stdout setup", "text"),
        ("Captured stdout call", "last words"),
    ]
    assert is_gone(stage.pids[0])
    assert stage.process is not None
    assert stage.process.capture_fds == []


def test_a_child_that_keeps_a_report_to_itself_gets_no_other_test(stage: _Stage) -> None:
    stage.child(stage.report("setup"), messages.TestOver(last=False), lambda: time.sleep(100))
    stage.isolate(following=stage.other)
    assert stage.heard.calls == CALL_DIED
    assert stage.kept == []
    assert is_gone(stage.pids[0])


def test_a_test_with_variables_of_its_own_waits_for_the_end_of_its_process(
    stage: _Stage,
) -> None:
    stage.item.stash[CHILD_ENV] = {"CUDA_VISIBLE_DEVICES": "0"}
    stage.child(*stage.reports(), OVER, messages.Done(), lambda: time.sleep(0.2))
    stage.isolate()
    assert stage.heard.calls == PASSED
    assert stage.kept == []
    assert is_gone(stage.pids[0])


def test_a_test_begins_again_in_another_process_as_often_as_is_wished(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[int] = []

    def prepare(item: pytest.Item, runs: int) -> None:
        item.stash[other_plugins.RUNS] = runs
        prepared.append(runs)

    monkeypatch.setattr(other_plugins, "rerun_elsewhere", lambda item, runs, error: True)
    monkeypatch.setattr(other_plugins, "prepare_rerun", prepare)
    for _ in range(2):
        stage.child(stage.report("setup"), lambda: os._exit(3))
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate()
    assert prepared == [1, 2]
    assert stage.heard.calls == ["start", *["setup passed", "call rerun"] * 2, *PASSED[1:]]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (messages.SessionStop("enough", 3), pytest.exit.Exception),
        (messages.Interrupt(), KeyboardInterrupt),
    ],
)
def test_a_stop_is_raised_when_all_is_told(
    stage: _Stage, message: messages.Message, kind: type
) -> None:
    stage.child(stage.report("setup"), message, OVER, messages.Done())
    with pytest.raises(kind):
        stage.isolate()
    assert stage.heard.calls == ["start", "setup passed", "finish"]


def test_what_a_child_has_finished_counts_if_a_signal_comes_as_soon_as_it_is_told_to_begin(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, child_is_over = os.pipe()
    sleep = functools.partial(time.sleep, 100)
    done = messages.TestOver(last=False)
    stage.child(*stage.reports(), done, lambda: os.write(child_is_over, b"!"), sleep)
    start = stage.process_for

    def order(message: messages.Message) -> None:
        assert isinstance(message, messages.Run)
        os.read(over, 1)
        signal.raise_signal(signal.SIGTERM)

    def process_for(*asked: Any) -> Steps[ItemProcess]:
        process = yield from start(*asked)
        process.supervisor.held = termination.held_back()
        process.due = messages.Run(("test_it",), ("test_other",), {}, None, 0)
        monkeypatch.setattr(process, "order", order)
        return process

    monkeypatch.setattr(stage, "process_for", process_for)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(pytest.exit.Exception, match="SIGTERM came"):
            stage.isolate(following=stage.other)
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(over)
        os.close(child_is_over)
    assert stage.heard.calls == PASSED[:-1]
    assert is_gone(stage.pids[0])


def test_a_time_limit_of_a_plugin_that_fails_the_test_here_fails_its_phase(
    stage: _Stage,
) -> None:
    class Limit:
        def pytest_runtest_logreport(self) -> None:
            stage.item.config.pluginmanager.unregister(self)
            pytest.fail("Timeout >1s", pytrace=False)

    stage.item.config.pluginmanager.register(Limit())
    stage.child(stage.report("setup"), lambda: time.sleep(100))
    stage.isolate()
    assert stage.heard.calls[-3:] == ["call failed", "teardown passed", "finish"]
    assert "because of: Timeout >1s" in stage.heard.reports[-2].longreprtext
    assert is_gone(stage.pids[0])


@pytest.mark.parametrize(("name", "emptied"), [("fork", 1), ("forkserver", 0)])
def test_a_forked_child_shares_the_files_of_the_capture(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch, name: str, emptied: int
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(pytest_internals, "empty_capture", calls.append)
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate(Method(name, 300.0))
    assert calls == [stage.item.config] * emptied


class _SetUp:
    """Fixtures of this process: for what they are torn down, and what that raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
        self.torn_down_for: list[object] = []
        self._error = error
        stand_in = SimpleNamespace(
            is_anything_set_up=lambda session: True,
            tear_down=self._tear_down,
            teardown_captured=lambda item: contextlib.nullcontext(),
        )
        monkeypatch.setattr(run_test, "pytest_internals", stand_in)

    def _tear_down(self, session: object, nextitem: object) -> None:
        self.torn_down_for.append(nextitem)
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("stop", [False, "enough"])
def test_fixtures_of_this_process_live_on_for_the_next_test_unless_the_session_stops(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch, stop: bool | str
) -> None:
    here = _SetUp(monkeypatch, None)
    stage.item.session.shouldstop = stop
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate()
    assert here.torn_down_for == [None if stop else stage.other]
    assert stage.heard.calls == PASSED


def test_what_their_teardown_raises_is_reported(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    _SetUp(monkeypatch, ValueError("not torn down"))
    stage.child(*stage.reports(), OVER, messages.Done())
    stage.isolate()
    assert stage.heard.calls == [*PASSED[:-2], "teardown failed", "finish"], "once"
    assert "not torn down" in stage.heard.reports[-1].longreprtext
    assert vars(stage.heard.reports[-1])["isolation"] == "forkserver"


def test_what_their_teardown_raises_is_added_to_a_teardown_that_failed_in_the_child(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    _SetUp(monkeypatch, ValueError("not torn down"))
    failed = stage.report("teardown", outcome="failed", longrepr="of the child")
    reports = [stage.report("setup"), stage.report("call"), failed]
    stage.child(*reports, OVER, messages.Done())
    stage.isolate()
    assert stage.heard.calls == [*PASSED[:-2], "teardown failed", "finish"], "once"
    (section,) = [text for name, text in stage.heard.reports[-1].sections if "process" in name]
    assert "not torn down" in section
    assert "of the child" in stage.heard.reports[-1].longreprtext


def test_a_teardown_of_theirs_that_ends_the_session_leaves_that_of_the_child_told(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    _SetUp(monkeypatch, KeyboardInterrupt())
    stage.child(*stage.reports(), OVER, messages.Done())
    with pytest.raises(KeyboardInterrupt):
        stage.isolate()
    assert stage.heard.calls == PASSED[:-1]
