"""What the hooks of a checked session make of the ledger: whom an error fails, and how."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import hooks
from pytest_cudafork.check.failing import reasons_of
from pytest_cudafork.check.hooks import CheckHooks, LateErrors
from pytest_cudafork.check.refusal import Refusals
from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.settings import Level, environment
from pytest_cudafork.settings.options import Settings

OWNER = "77"
STACK = [["/src/engine.py", 3, "probe", 3]]
CONFIG = SimpleNamespace(getoption=lambda name, default: default)


class Observer:
    """An observer whose ledger the test writes."""

    simulated = False
    owner = OWNER

    def __init__(self, path: Path) -> None:
        self.lost: tuple[str, ...] = ()
        self.untold: tuple[str, ...] = ()
        self.unwritten: list[Callable[[], object]] = []
        """What other threads are about to write."""
        self.ledger = Ledger(str(path))
        self.ledger.create()

    def touch(self, test: str = "", **fields: Any) -> None:
        """Write a touch of the pytest process."""
        record = {"entry": "cuInit", "stack": STACK, "pid": 77, "owner": OWNER, "test": test}
        self.ledger.append("touch", **{**record, **fields})

    def settle(self) -> None:
        """Let the threads write."""
        while self.unwritten:
            self.unwritten.pop()()

    def note_late(self, ids: list[str]) -> None:
        """Write that these came late."""
        self.ledger.append("late", ids=ids, owner=OWNER)

    def note_told(self, culprit: str, nodeid: str) -> None:
        """Write that this was told."""
        self.ledger.append("told", culprit=culprit, at=nodeid, owner=OWNER)

    def note_reported(self, ids: list[str]) -> None:
        """Write that these were reported."""
        self.ledger.append("reported", ids=ids, owner=OWNER)

    def lost_records(self) -> tuple[str, ...]:
        """Return what is known to be lost."""
        return self.lost

    def untold_touches(self, records: list[dict[str, Any]]) -> tuple[str, ...]:
        """Return what the driver alone knows."""
        return self.untold

    def records(self) -> list[dict[str, Any]]:
        """Return everything so far."""
        return self.ledger.reader().new()

    def history(self) -> History:
        """Return the same as stories use it."""
        return History(self.records())


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what the hooks set restored."""
    for name in (environment.PHASE, environment.FORK_OK):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def observer(tmp_path: Path) -> Observer:
    """An empty ledger."""
    return Observer(tmp_path / "ledger")


def hooks_on(observer: Any, level: Level = Level.TOUCH, **about: bool) -> CheckHooks:
    """Return the hooks of a session with one test, ``test_it.py::test_a``."""
    session: Any = SimpleNamespace(
        settings=Settings(level=level), isolated=False, joined=False, reports_home=False, **about
    )
    made = CheckHooks(session, observer)
    collected: Any = SimpleNamespace(items=[SimpleNamespace(nodeid="test_it.py::test_a")])
    made.pytest_collection_finish(collected)
    return made


def item_at(nodeid: str = "test_it.py::test_a", *markers: pytest.Mark) -> Any:
    """Return a test that notes what is told of it."""
    told: list[Any] = []
    return SimpleNamespace(
        nodeid=nodeid,
        config=CONFIG,
        told=told,
        location=("test_it.py", 0, "test_a"),
        keywords={"test_a": object()},
        iter_markers=lambda name: [mark for mark in markers if mark.name == name],
        add_report_section=lambda *section: told.append(section),
        ihook=SimpleNamespace(
            pytest_runtest_logreport=lambda report: told.append(report),
            pytest_runtest_logfinish=lambda nodeid, location: told.append(nodeid),
        ),
    )


def through(hook: Generator[None, Any, Any], work: Callable[[], object] = lambda: None) -> object:
    """Run what a hook wraps, as pluggy does, and return the result."""
    next(hook)
    try:
        result = work()
    except BaseException as error:
        try:
            hook.throw(error)
        except StopIteration as stop:
            return stop.value
    else:
        try:
            hook.send(result)
        except StopIteration as stop:
            return stop.value
    raise AssertionError("the hook goes on")


PHASES = ("setup", "call", "teardown")


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_touches_fails_and_is_reported(observer: Observer, phase: str) -> None:
    hook = getattr(hooks_on(observer), f"pytest_runtest_{phase}")(item_at())
    with pytest.raises(CudaTouchError, match=r"engine\.py:3: in probe") as raised:
        through(hook, lambda: observer.touch(f"test_it.py::test_a ({phase})"))
    assert isinstance(raised.value, pytest.fail.Exception), "pytest shows its message alone"
    touch, reported = observer.records()
    assert reported["ids"] == [touch["id"]]


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_does_nothing_passes(observer: Observer, phase: str) -> None:
    through(getattr(hooks_on(observer), f"pytest_runtest_{phase}")(item_at()))


@pytest.mark.parametrize("phase", PHASES)
def test_beside_a_failure_of_its_own_the_story_is_a_section(observer: Observer, phase: str) -> None:
    item = item_at()
    hook = getattr(hooks_on(observer), f"pytest_runtest_{phase}")(item)

    def work() -> None:
        observer.touch("test_it.py::test_a")
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        through(hook, work)
    ((when, title, text),) = item.told
    assert (when, title) == (phase, "CUDA and fork")
    assert "engine.py:3" in text


@pytest.mark.parametrize("outcome", [pytest.skip.Exception, pytest.xfail.Exception])
def test_a_skip_does_not_hide_an_error(observer: Observer, outcome: type[BaseException]) -> None:
    def work() -> None:
        observer.touch("test_it.py::test_a", poisoned=True)
        raise outcome("no GPU")

    with pytest.raises(PoisonedTouchError):
        through(hooks_on(observer, Level.POISON).pytest_runtest_call(item_at()), work)


def test_an_error_of_another_test_waits_for_the_end(observer: Observer) -> None:
    hooks = hooks_on(observer)
    item = item_at("test_it.py::test_b")
    name = "test_it.py::test_a (call)"
    through(hooks.pytest_runtest_call(item), lambda: observer.touch(name, poisoned=True))
    (left,) = hooks.unreported(observer.records())
    assert left.nodeid == "test_it.py::test_a"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_touch_that_a_thread_is_still_writing_is_this_phases(
    observer: Observer, phase: str, fails: bool
) -> None:
    def work() -> None:
        observer.unwritten.append(lambda: observer.touch(f"test_it.py::test_a ({phase})"))
        if fails:
            pytest.skip("no GPU")

    with pytest.raises(CudaTouchError):
        through(getattr(hooks_on(observer), f"pytest_runtest_{phase}")(item_at()), work)


@pytest.mark.parametrize("seen", ["in the next test", "at the end", "in a worker"])
def test_a_touch_of_a_test_that_is_over_fails_the_session(observer: Observer, seen: str) -> None:
    hooks, name = hooks_on(observer), "test_it.py::test_a (call)"
    hooks._joined = seen == "in a worker"
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    if seen == "in the next test":
        item = item_at("test_it.py::test_b")
        through(hooks.pytest_runtest_call(item), lambda: observer.touch(name))
    else:
        observer.touch(name)
    hooks.pytest_sessionfinish(session)
    assert (session.exitstatus == pytest.ExitCode.TESTS_FAILED) is not hooks._joined
    (left,) = hooks.unreported(observer.records())
    assert (left.error, left.nodeid) == (CudaTouchError, "test_it.py::test_a")


@pytest.mark.parametrize("end", [KeyboardInterrupt(), pytest.exit.Exception("enough")])
@pytest.mark.parametrize("poisoned", [True, False])
def test_what_ends_the_session_in_a_test_hides_no_error(
    observer: Observer, end: BaseException, poisoned: bool
) -> None:
    hooks = hooks_on(observer)

    def work() -> None:
        observer.touch("test_it.py::test_a (call)", poisoned=poisoned)
        raise end

    with pytest.raises(type(end)):
        through(hooks.pytest_runtest_call(item_at()), work)
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    hooks.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert len(hooks.unreported(observer.records())) == 1


def test_a_touch_in_an_isolated_test_is_no_late_one(observer: Observer) -> None:
    hooks = hooks_on(observer)
    observer.touch("test_it.py::test_a (call)", owner="88", pid=88)
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    hooks.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.OK


def test_a_test_of_a_session_that_this_test_started_is_this_tests(observer: Observer) -> None:
    hook = hooks_on(observer).pytest_runtest_call(item_at())
    with pytest.raises(CudaTouchError):
        through(hook, lambda: observer.touch("test_inner.py::test_x (call)"))


def test_records_of_another_pytest_process_are_its_own(observer: Observer) -> None:
    hook = hooks_on(observer).pytest_runtest_call(item_at())
    through(hook, lambda: observer.touch("test_it.py::test_a", owner="88", pid=88))


def test_many_places_are_listed_below_the_worst(observer: Observer) -> None:
    def work() -> None:
        for line in range(12):
            stack = [["/src/engine.py", line, "probe", 3]]
            observer.touch("test_it.py::test_a", stack=stack, poisoned=line == 5)

    with pytest.raises(PoisonedTouchError) as raised:
        through(hooks_on(observer).pytest_runtest_call(item_at()), work)
    text = str(raised.value)
    assert "engine.py:5" in text.partition("also:")[0]
    assert "... and 3 more (--cuda-fork-ledger=FILE keeps all)" in text


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_a_collection_that_touches_fails(observer: Observer, outcome: str) -> None:
    hooks = hooks_on(observer)
    environment.put(environment.PHASE, "before")
    collector: Any = SimpleNamespace(nodeid="test_it.py", config=CONFIG)
    phases: list[str] = []

    def collect() -> Any:
        phases.append(environment.value(environment.PHASE))
        observer.touch()
        return SimpleNamespace(outcome=outcome, longrepr="its own", sections=[])

    report: Any = through(hooks.pytest_make_collect_report(collector), collect)
    assert phases == ["collect test_it.py"]
    assert environment.value(environment.PHASE) == "before"
    assert report.outcome == "failed"
    told = str(report.longrepr) if outcome == "passed" else report.sections[0][1]
    assert "engine.py:3" in told


def test_a_collection_that_touches_nothing_is_left_alone(observer: Observer) -> None:
    collector: Any = SimpleNamespace(nodeid="", config=CONFIG)
    report = SimpleNamespace(outcome="passed")
    made = through(hooks_on(observer).pytest_make_collect_report(collector), lambda: report)
    assert made is report


@pytest.mark.parametrize("reason", ["on purpose", None])
def test_the_marker_is_in_force_as_long_as_its_test(
    observer: Observer, pytester: pytest.Pytester, reason: str | None
) -> None:
    mark = "" if reason is None else f"@pytest.mark.cuda_fork_ok(reason={reason!r})\n"
    (item,) = pytester.getitems(f"import pytest\n{mark}def test_a(): pass\n")
    hook = hooks_on(observer).pytest_runtest_protocol(item)
    seen = through(hook, lambda: environment.optional(environment.FORK_OK))
    assert seen == reason
    assert not environment.is_set(environment.FORK_OK)


def test_a_fork_around_a_test_is_reported_as_its_set_up(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pytest_cudafork.check.hooks.marks_of", lambda item: SimpleNamespace(fork_ok=None)
    )
    item = item_at()

    def fork() -> None:
        raise CudaForkError("refused")

    assert through(hooks_on(observer).pytest_runtest_protocol(item), fork) is True
    report, nodeid = item.told
    assert (report.when, report.outcome, report.longreprtext) == ("setup", "failed", "refused")
    assert nodeid == item.nodeid


@pytest.mark.parametrize(
    ("joined", "status", "expected"),
    [
        (False, pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED),
        (False, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.TESTS_FAILED),
        (False, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERRUPTED),
        (True, pytest.ExitCode.OK, pytest.ExitCode.OK),
    ],
)
def test_an_error_that_failed_nothing_fails_the_session(
    observer: Observer, joined: bool, status: pytest.ExitCode, expected: pytest.ExitCode
) -> None:
    hooks = hooks_on(observer)
    hooks._joined = joined
    observer.touch()
    session: Any = SimpleNamespace(exitstatus=status)
    hooks.pytest_sessionfinish(session)
    assert session.exitstatus == expected


def test_a_session_without_errors_keeps_its_status(observer: Observer) -> None:
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    hooks_on(observer).pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.OK


def ending() -> Any:
    """Return a session that is about to end well."""
    config = SimpleNamespace(stash=pytest.Stash())
    return SimpleNamespace(exitstatus=pytest.ExitCode.OK, config=config)


@pytest.mark.parametrize("level", [Level.POISON, Level.FORK, Level.TOUCH])
def test_a_lost_record_fails_the_session_at_each_level(level: Level, observer: Observer) -> None:
    session: Any = ending()
    observer.lost = ("a record is gone",)
    hooks_on(observer, level).pytest_sessionfinish(session)
    assert session.exitstatus is pytest.ExitCode.TESTS_FAILED
    assert reasons_of(session.config) == ["a record is gone"]


@pytest.mark.parametrize("level", [Level.POISON, Level.FORK, Level.TOUCH])
def test_a_touch_without_a_record_fails_the_session_where_touches_are_errors(
    level: Level, observer: Observer
) -> None:
    session: Any = ending()
    observer.untold = ("the driver alone knows",)
    hooks_on(observer, level).pytest_sessionfinish(session)
    assert (session.exitstatus is pytest.ExitCode.TESTS_FAILED) is (level is Level.TOUCH)


def test_a_test_that_has_touched_cannot_pass_in_a_later_run(observer: Observer) -> None:
    hooks, item = hooks_on(observer), item_at()
    phases: list[str] = []

    def run(touches: bool) -> None:
        through(hooks.pytest_runtest_setup(item))
        phases.append(environment.value(environment.PHASE))
        try:
            work = lambda: observer.touch("test_it.py::test_a (call)") if touches else None  # noqa: E731
            through(hooks.pytest_runtest_call(item), work)
        finally:
            through(hooks.pytest_runtest_teardown(item))

    with pytest.raises(CudaTouchError) as first:
        run(touches=True)
    with pytest.raises(CudaTouchError, match="in an earlier run of this test") as second:
        run(touches=False)
    assert "earlier run" not in str(first.value)
    assert "what to do:" in str(second.value), "the first run's failure may not be shown"
    with pytest.raises(CudaTouchError):
        run(touches=True)
    assert phases == ["", "run 2", "run 3"]
    assert environment.value(environment.PHASE) == ""


def test_an_error_that_leaves_nothing_behind_may_pass_in_a_later_run(observer: Observer) -> None:
    hooks, item = hooks_on(observer, Level.FORK), item_at()
    name = "test_it.py::test_a (call)"
    through(hooks.pytest_runtest_setup(item))
    with pytest.raises(PoisonedTouchError):
        through(hooks.pytest_runtest_call(item), lambda: observer.touch(name, poisoned=True))
    through(hooks.pytest_runtest_setup(item))
    through(hooks.pytest_runtest_call(item))


def test_a_refusal_that_a_failure_shows_is_not_told_beside_it(observer: Observer) -> None:
    hooks, item = hooks_on(observer, Level.FORK), item_at()
    test = "test_it.py::test_a (call)"
    notes: Any = SimpleNamespace(note_caught=lambda fork, **place: None)

    def refuse() -> str:
        return observer.ledger.append(
            "fork", pid=77, owner=OWNER, test=test, verdict="guarded", stack=STACK
        )

    def shown() -> None:
        raise ValueError("its own") from Refusals(notes).error("why", refuse())

    def swallowed() -> None:
        refuse()
        raise ValueError("its own")

    for work, sections in ((shown, 0), (swallowed, 1)):
        del item.told[:]
        with pytest.raises(ValueError, match="its own"):
            through(hooks.pytest_runtest_call(item), work)
        assert len(item.told) == sections
    assert not hooks.unreported(observer.records())


def test_a_report_shows_the_culprit_first_and_notes_what_a_subtest_tells(
    observer: Observer,
) -> None:
    hooks, item = hooks_on(observer, Level.FORK), item_at()
    notes: Any = SimpleNamespace(note_caught=lambda fork, **place: None)
    fork = observer.ledger.append("fork", pid=77, owner=OWNER, verdict="guarded", stack=STACK)
    error = Refusals(notes).error("fork refused\nand so on", fork)
    call: Any = SimpleNamespace(excinfo=SimpleNamespace(value=error))
    crash = SimpleNamespace(message="fork refused\nand so on")
    report = SimpleNamespace(failed=True, longrepr=SimpleNamespace(reprcrash=crash))
    assert through(hooks.pytest_runtest_makereport(item, call), lambda: report) is report
    assert crash.message == "fork refused"
    assert not hooks.unreported(observer.records())
    through(hooks.pytest_runtest_call(item))


@pytest.mark.parametrize(
    ("raises", "raised"),
    [
        (None, ValueError),
        (ValueError, CudaTouchError),
        ((KeyError, ValueError), CudaTouchError),
        (KeyError, ValueError),
        ((ValueError, CudaTouchError), ValueError),
    ],
)
def test_a_failure_that_is_expected_by_its_class_hides_nothing_beside_it(
    observer: Observer, raises: Any, raised: type[BaseException]
) -> None:
    expected = {} if raises is None else {"raises": raises}
    item = item_at("test_it.py::test_a", pytest.mark.xfail(**expected).mark)

    def fail() -> None:
        observer.touch("test_it.py::test_a (call)")
        raise ValueError("its own")

    with pytest.raises((ValueError, CudaTouchError)) as failed:
        through(hooks_on(observer).pytest_runtest_call(item), fail)
    assert issubclass(failed.type, raised)
    assert bool(item.told) == (raised is ValueError), "as a section"


def test_what_the_summary_has_told_is_not_left_to_tell(observer: Observer) -> None:
    hooks = hooks_on(observer)
    observer.touch()
    (story,) = hooks.left_to_tell()
    assert "in probe" in story
    hooks.summarized.update(found.id for found in hooks.unreported(observer.records()))
    assert hooks.left_to_tell() == []


class LateCheck:
    """A check that finds what the test says."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def judge(self, session: Any) -> None:
        """Fail the session for what is there."""
        if self.left:
            session.exitstatus = 1

    def left_to_tell(self) -> list[str]:
        """Return what is there."""
        return self.left


def late_errors() -> tuple[LateCheck, LateErrors, Any]:
    """Return a check, the plugin for it and a session that is good so far."""
    check: Any = LateCheck()
    return check, LateErrors(check), SimpleNamespace(exitstatus=0)


def test_the_session_is_judged_behind_other_hooks_and_when_all_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check, errors, session = late_errors()
    errors.pytest_sessionfinish(session)
    assert session.exitstatus == 0
    check.left = ["fork refused at a.py:3"]
    errors.close()
    assert session.exitstatus == 1
    assert capsys.readouterr().err == "\nERROR: too late to fail a test:\nfork refused at a.py:3\n"


def test_without_a_session_it_is_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    check, errors, _ = late_errors()
    check.left = ["fork refused at conftest.py:3"]
    errors.close()
    assert "conftest.py:3" in capsys.readouterr().err


def test_a_child_of_the_session_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check, errors, session = late_errors()
    errors.pytest_sessionfinish(session)
    check.left = ["fork refused"]
    monkeypatch.setattr(hooks, "os", SimpleNamespace(getpid=lambda: -1))
    errors.close()
    assert session.exitstatus == 0
    assert capsys.readouterr().err == ""
