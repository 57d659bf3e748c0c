"""What fails: which touch fails which test, which collection, or the session.

The hooks are a plugin of their own, so that a session without the check does not pay for them. The
rules stand in ``findings.py``; the last section is written by ``report/terminal.py``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator

import pytest

from pytest_cudafork.check.accepted import Acceptance, accepted_records
from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.check.findings import (
    SECTION,
    Finding,
    expected_ids,
    find,
    find_in_session,
    reported_ids,
    worst,
)
from pytest_cudafork.check.refusal import Refusals, refusals_shown_with
from pytest_cudafork.check.session import CudaForkSession
from pytest_cudafork.check.telling import (
    Telling,
    longrepr_of,
    put_culprit_first,
    show_as_pytest,
    told_error,
)
from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.pytest_reports import ENDS_SESSION
from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.errors import CudaForkError, CudaTouchError
from pytest_cudafork.observe.base.ledger import LedgerReader
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.settings import Level, environment
from pytest_cudafork.settings.markers import marks_of

_NEEDED_IN_TESTS = (
    "pytest_cudafork.check.caught",
    "pytest_cudafork.observe.base.hooking",
    "pytest_cudafork.observe.story.stories",
)
"""What tells of touches and forks. A test may have replaced what imports are made with."""
_TOUCHED_BEFORE = (
    "\n\nThat was in an earlier run of this test. It cannot pass in this process any more, where "
    "CUDA stays initialized."
)


class CheckHooks:
    """Looks into the ledger after every phase and turns what is new there into verdicts."""

    def __init__(
        self,
        session: CudaForkSession,
        observer: Observer,
        refusals: Refusals | None = None,
        acceptance: Acceptance | None = None,
    ) -> None:
        self._level = session.settings.level
        self._isolated = session.isolated
        self._joined = session.joined or session.reports_home
        self._observer = observer
        self._reader: LedgerReader = observer.ledger.reader()
        self._refusals = refusals or Refusals(observer)
        self._acceptance = acceptance or Acceptance(observer)
        self._expected: set[str] = set()
        """The refused forks whose error was caught by its name."""
        self._reported: set[str] = set()
        self._runs: dict[str, int] = {}
        """How often each test was begun."""
        self.summarized: set[str] = set()
        """The errors that the terminal's last section has told."""
        self._touches: dict[tuple[str, str], tuple[int, list[Finding]]] = {}
        """The touches that were an error, by test and phase, with the run in which they were."""
        self._telling = Telling(observer.note_told, simulated=observer.simulated)
        self._tests: frozenset[str] = frozenset()
        self._set_phase("start")

    # -- collection ------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Fail the collection of a module that touches CUDA, at level ``touch``."""
        former = environment.value(environment.PHASE)
        self._set_phase(f"collect {collector.nodeid or 'the suite'}")
        try:
            report = yield
        finally:
            self._set_phase(former)
        tbstyle = collector.config.getoption("tbstyle", "auto")
        self._fail_collection(report, collector.nodeid, tbstyle)
        return report

    def _fail_collection(self, report: pytest.CollectReport, nodeid: str, tbstyle: str) -> None:
        """Fail a collection for the errors it made; beside one of its own they are a section."""
        own = pytest_internals.collection_error(report)
        if own is not None:
            self._note_shown(own, nodeid)
            put_culprit_first(report.longrepr, own)
        self._observer.settle()
        found = self._new_findings()
        if found and report.outcome == "failed":
            report.sections.append((SECTION, self._tell(found, nodeid)))
        elif found:
            report.outcome = "failed"
            error = self._error(found, nodeid)
            report.longrepr = longrepr_of(error)
            show_as_pytest(report.longrepr, error, tbstyle)
        self._telling.reported(nodeid, failed=report.outcome == "failed")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """From here on, touches belong to tests; what these may need is imported before them."""
        for name in _NEEDED_IN_TESTS:
            importlib.import_module(name)
        self._tests = frozenset(item.nodeid for item in session.items)
        self._set_phase("")

    @staticmethod
    def _set_phase(phase: str) -> None:
        environment.put(environment.PHASE, phase)

    # -- tests -----------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let the test fork if its marker says so; report a fork around the test that may not be.

        A plugin that forks around every test (pytest-forked) does so outside any phase, where an
        exception would end the session.
        """
        reason = marks_of(item).fork_ok
        with contextlib.nullcontext() if reason is None else _allowing_forks(reason):
            try:
                return (yield)
            except CudaForkError as error:
                self._note_shown(error, item.nodeid)
                _report_refused_fork(item, error)
                self._telling.reported(item.nodeid, failed=True)
                return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Check after the set-up."""
        __tracebackhide__ = True
        self._begin(item)
        try:
            yield
        except BaseException as error:
            self._after_failure(item, "setup", error)
            raise
        self._after(item, "setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Check after the test body."""
        __tracebackhide__ = True
        try:
            yield
        except BaseException as error:
            self._after_failure(item, "call", error)
            raise
        self._after(item, "call")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Check after the teardown."""
        __tracebackhide__ = True
        try:
            yield
        except BaseException as error:
            self._after_failure(item, "teardown", error)
            raise
        finally:
            self._set_phase("")
        self._after(item, "teardown")

    def _begin(self, item: pytest.Item) -> None:
        """Tell the runs of a test that runs again apart, as the same touch is one of each."""
        nodeid = item.nodeid
        self._telling.reported(nodeid, failed=False)  # nothing is left of another run
        run = self._runs[nodeid] = self._runs.get(nodeid, 0) + 1
        if run > 1:
            self._set_phase(f"run {run}")

    def _after(self, item: pytest.Item, when: str) -> None:
        """Fail a phase that has passed for the errors it made.

        Raises:
            PoisonedTouchError: a child that was forked while CUDA was initialized touched it.
            CudaForkError: a fork was refused, and its error was not caught by its name.
            CudaTouchError: level ``touch`` allows no touch here.

        """
        # Not hidden: it is never shown, and pytest remarks on a traceback that is all hidden.
        self._refusals.settle()
        self._observer.settle()  # a later record would be another test's, or nobody's
        own = [e for e in pytest_internals.outcomes_of_unittest(item) if not _is_skip(e)]
        for error in own:
            self._note_shown(error, item.nodeid)
        if self._reader.behind():
            found = self._findings_of(item, when)
            if found and own:
                item.add_report_section(when, SECTION, self._tell(found, item.nodeid))
            elif found:
                pytest_internals.forget_outcomes_of_unittest(item)
                raise self._error(found, item.nodeid)
        if self._touches:
            run, found = self._touches.get((item.nodeid, when), (0, []))
            if run and run < self._runs.get(item.nodeid, 1):
                raise self._error(found, item.nodeid, _TOUCHED_BEFORE)

    def _after_failure(self, item: pytest.Item, when: str, error: BaseException) -> None:
        """Add the errors to a phase that has failed by itself.

        A skip they turn into a failure, and so what ``xfail(raises=...)`` expects by its class.
        """
        self._refusals.settle(passing=error)
        self._observer.settle()
        if isinstance(error, ENDS_SESSION):
            self._note_late(self._findings_of(item, when))  # no report comes that could tell them
            return
        if not _is_skip(error):
            self._note_shown(error, item.nodeid)
        found = self._findings_of(item, when)
        if found and (_is_skip(error) or _is_expected(item, error, worst(found).error)):
            raise self._error(found, item.nodeid) from error
        if found:
            item.add_report_section(when, SECTION, self._tell(found, item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell each culprit in full once; a subtest is reported here alone."""
        error = call.excinfo.value if call.excinfo is not None else None
        if error is not None and not _is_skip(error):
            self._note_shown(error, item.nodeid)
        report = yield
        if call.excinfo is not None:  # unittest's is there only now
            put_culprit_first(report.longrepr, call.excinfo.value)
            tbstyle = item.config.getoption("tbstyle", "auto")
            show_as_pytest(report.longrepr, call.excinfo.value, tbstyle)
            self._telling.reported(item.nodeid, failed=report.failed)
        return report

    def _note_shown(self, error: BaseException, nodeid: str) -> None:
        """Take note of the refused forks that a failure shows: it tells them already."""
        refusals = list(refusals_shown_with(error))
        if not refusals:
            return
        self._telling.shorten(refusals, self._observer.history(), nodeid)
        self._report(refusal.fork_id for refusal in refusals)

    def _findings_of(self, item: pytest.Item, when: str) -> list[Finding]:
        """The new errors that belong to this test; those of other tests wait for the end.

        A test that is none of ours ran in a session that this test has started.
        """
        found = self._new_findings()
        mine = [f for f in found if f.nodeid == item.nodeid or f.nodeid not in self._tests]
        touches = [each for each in mine if each.error is CudaTouchError]
        if touches:
            self._touches[item.nodeid, when] = (self._runs.get(item.nodeid, 1), touches)
        self._note_late(each for each in found if each not in mine)
        return mine

    def _note_late(self, findings: Iterable[Finding]) -> None:
        """Note touches of tests that are over: whoever judges the session asks no test of them."""
        late = [f.id for f in findings if f.error is CudaTouchError and f.nodeid]
        if late:
            self._observer.note_late(late)

    # -- what both use ---------------------------------------------------------------------------

    def _new_findings(self) -> list[Finding]:
        """Return the errors among what was written since the last time."""
        found = self._look()
        here = {each.id: int(each.record.get("tid", 0)) for each in found if each.was_refused_here}
        if here:
            self._refusals.wait_for(here)
            found += self._look()
        return [each for each in found if each.id not in self._expected]

    def _look(self) -> list[Finding]:
        new = self._reader.new()
        self._expected |= expected_ids(new)
        own = [record for record in new if record.get("owner") == self._observer.owner]
        found = find(own, self._level, isolated=self._isolated, expected=self._expected)
        return self._acceptance.left([each for each in found if each.id not in self._reported])

    def _error(self, findings: list[Finding], nodeid: str, addition: str = "") -> BaseException:
        return told_error(worst(findings), self._tell(findings, nodeid) + addition)

    def _tell(self, findings: list[Finding], nodeid: str) -> str:
        """Tell the findings in one text; from here on they are reported."""
        self._report(found.id for found in findings)
        return self._telling.story(findings, self._observer.history(), nodeid)

    def _report(self, ids: Iterable[str]) -> None:
        """Take note, for all processes, that errors have been told."""
        new = [each for each in ids if each not in self._reported]
        if new:
            self._reported.update(new)
            self._observer.note_reported(new)

    # -- the end ---------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session for errors that no test could be failed for."""
        self.judge(session)

    def judge(self, session: pytest.Session) -> None:
        """Fail the session for what is in the ledger by now and has failed no test."""
        self._refusals.settle()
        self._observer.settle()
        self._note_late(self._new_findings())
        self._reader.close()
        if self._joined:
            return
        records = self._observer.records()
        self._acceptance.left(self.unreported(records))  # and notes what is accepted
        records = self._observer.records()
        lost = self.lost(records)
        if self.unreported(records) or lost:
            fail_session(session, lost, without_tests=True)

    def left_to_tell(self) -> list[str]:
        """Return the stories of errors that neither a failure nor the summary has told."""
        self._refusals.settle()
        self._observer.settle()
        if self._joined:
            return []
        records = self._observer.records()
        left = [found for found in self.unreported(records) if found.id not in self.summarized]
        if not left:
            return []
        history = self._observer.history()
        return [self._telling.story([found], history, "") for found in left]

    def lost(self, records: list[Record]) -> tuple[str, ...]:
        """Say, in words, what is missing from the ledger that may have been an error."""
        # A poisoned touch is an error at each level, and any record may have been of one.
        lost = self._observer.lost_records()
        lost += host_words(records, "damage")
        return lost + self._observer.untold_touches(records) if self._level is Level.TOUCH else lost

    def unreported(self, records: list[Record]) -> list[Finding]:
        """The errors, of all processes of the session, that have failed no test or collection."""
        done = reported_ids(records) | {each for each, _ in accepted_records(records)}
        return [each for each in find_in_session(records, self._level) if each.id not in done]


class LateErrors:
    """Judges the session again behind the hooks that others have for its end, and when all is over.

    A plugin of its own, as these come after the check's own end. ``close`` belongs to the end of
    the configuration, before that of the watch.
    """

    def __init__(self, check: CheckHooks) -> None:
        self._check = check
        self._pid = os.getpid()
        self._session: pytest.Session | None = None
        self.then: list[Callable[[], object]] = []
        """What tells others how the session has ended, to be called when all was judged."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge the session behind all hooks that are no wrappers."""
        self._session = session
        self._check.judge(session)

    def close(self) -> None:
        """Tell what came after the summary; pytest returns the status only then."""
        if self._pid != os.getpid():
            return
        if self._session is not None:
            self._check.judge(self._session)
        for text in self._check.left_to_tell():
            sys.stderr.write(f"\nERROR: too late to fail a test:\n{text}\n")
        for tell in self.then:
            tell()


def host_words(records: Iterable[Record], key: str) -> tuple[str, ...]:
    """Return what workers on other hosts said of themselves: their "damage" or their "limits"."""
    return tuple(
        f"host {record.get('number')} ({record.get('name')}): {words}"
        for record in records
        if record["k"] == "host"
        for words in record.get(key, ())
    )


def _is_skip(error: BaseException) -> bool:
    """Whether an exception says that a test was skipped, or expected to fail."""
    return isinstance(error, pytest.skip.Exception | pytest.xfail.Exception)


def _is_expected(item: pytest.Item, error: BaseException, found: type[BaseException]) -> bool:
    """Whether a marker expects the failure by its class, and not what was found beside it."""
    expected = [mark.kwargs.get("raises") for mark in item.iter_markers("xfail")]
    return any(isinstance(error, each) and not issubclass(found, each) for each in expected if each)


@contextlib.contextmanager
def _allowing_forks(reason: str) -> Iterator[None]:
    """Let this process and its children fork for a reason meanwhile."""
    environment.put(environment.FORK_OK, reason)
    try:
        yield
    finally:
        environment.take(environment.FORK_OK)


def _report_refused_fork(item: pytest.Item, error: CudaForkError) -> None:
    """Report a fork around a test that was refused as a failed set-up of the test."""
    report = pytest.TestReport(
        item.nodeid,
        item.location,
        # As pytest does: the values need not survive the way from a worker of xdist.
        dict.fromkeys(item.keywords, 1),
        "failed",
        str(error),
        "setup",
    )
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
