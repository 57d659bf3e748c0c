"""The baseline in a session: which of its places were passed, and what becomes of the file.

Every process notes in the ledger the places of the baseline that it has passed and the tests that
were left out. The pytest process, at the end, judges from that what is gone, changes the file if it
is to, and writes how the session ended, for ``python -m pytest_cudafork merge``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from pytest_cudafork.baseline.entries import Accepted, CheckBaseline
from pytest_cudafork.baseline.file import BaselineError, alone
from pytest_cudafork.check.baseline_result import BaselineResult, result_of
from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.check.hooks import CheckHooks
from pytest_cudafork.check.session import CudaForkSession
from pytest_cudafork.check.watch import Watch
from pytest_cudafork.compat.plugins.xdist import why_given_up
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.settings.options import BASELINE_UPDATE


class PassedPlaces:
    """The plugin object that notes which places of the baseline this process passes."""

    def __init__(self, watch: Watch) -> None:
        self._observer = watch.observer
        self._acceptance = watch.acceptance
        self._places: frozenset[str] | None = None
        self._passed = ""
        """The test whose body has passed last."""

    def _note(self, place: str) -> None:
        if self._places is None:
            terms = self._acceptance.terms
            self._places = frozenset(terms.entries.values() if terms is not None else ())
        if place in self._places:
            self._observer.note_ran(place)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Note that everything before the first collection was passed."""
        self._note("start")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Note the collection of a file in which an entry was seen."""
        report = yield
        if report.passed:
            self._note(f"collect {collector.nodeid or 'the suite'}")
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """See a test pass: one that was skipped or failed may not have come to the line."""
        __tracebackhide__ = True
        self._passed = ""
        yield
        self._passed = item.nodeid

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Note the end of a test in which an entry was seen."""
        __tracebackhide__ = True
        yield
        if self._passed == item.nodeid:
            self._note(item.nodeid)


class BaselineHooks:
    """The plugin object that sees how the session goes, and judges and writes at its end."""

    def __init__(
        self, config: pytest.Config, session: CudaForkSession, watch: Watch, check: CheckHooks
    ) -> None:
        self._config = config
        self._settings = session.settings
        self._joined = session.joined or session.reports_home
        self._observer = watch.observer
        self._acceptance = watch.acceptance
        self._check = check
        self._pid = os.getpid()
        self._interrupted = ""
        """What ended the session early."""
        self._session: pytest.Session | None = None
        """The session whose end was judged."""
        self._end: dict[str, object] = {}
        """How that was written last."""
        self.result = BaselineResult()
        self.gone: tuple[Accepted, ...] = ()
        self.written = ""
        """What was written, in words."""
        self.failure = ""
        """Why the file was not changed though it was to be."""

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note that the session is not a whole one."""
        if items:
            self._observer.note_deselected(len(items))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Take note of an early end; ``pytest.exit`` may give it any exit status."""
        self._interrupted = excinfo.exconly().partition("\n")[0]

    # -- the end ---------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge the entries, change the file if it is to be, and write how the session ended.

        The check's own end has been: it is registered later, so it is asked first.
        """
        if self._joined or os.getpid() != self._pid:
            return  # the session's own process will; a forked child may come to this end, too
        records = self._observer.records()
        stopped = self._why_stopped(session, exitstatus)
        partial = stopped or self._why_partial(records)
        self.result, untold = self._judged(records)
        quiet = () if partial else self.result.quiet
        self.gone = tuple(dict.fromkeys((*self.result.missing, *quiet)))
        if self._settings.baseline_update:
            self._update(stopped)
        if self.failure:
            fail_session(session, [self.failure])
        self._session = session
        self._end = {"stopped": stopped, "partial": partial, "root": str(self._config.rootpath)}
        self._note_end(self.result, untold)

    def _judged(self, records: list[Record]) -> tuple[BaselineResult, int]:
        """Return the result until now, and how many errors have failed no test."""
        unreported = self._check.unreported(records)
        root, terms = str(self._config.rootpath), self._acceptance.terms
        return result_of(records, self._settings.level, root, terms, unreported), len(unreported)

    def _note_end(self, result: BaselineResult, untold: int) -> None:
        """Write how the session ended, unless that was written so already."""
        assert self._session is not None, "it has come to its end"
        found = {"result": result.to_plain(), "untold": untold}
        end = {**self._end, **found, "status": int(self._session.exitstatus)}
        if end != self._end:
            self._end = end
            self._observer.note_end(**end)

    def close(self) -> None:
        """Write anew how the session ended, if something has come since: ``merge`` reads it."""
        kept = bool(self._settings.ledger)  # else it is about to be removed
        if kept and self._session is not None and os.getpid() == self._pid:
            self._note_end(*self._judged(self._observer.records()))

    def _why_stopped(self, session: pytest.Session, exitstatus: int) -> str:
        """Say why the session did not come to its end; "" if it did."""
        if session.shouldstop or session.shouldfail:
            return str(session.shouldstop or session.shouldfail)
        ends = (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        if exitstatus not in ends:
            return f"it ended with exit status {int(exitstatus)}"
        return self._interrupted or why_given_up(self._config)

    def _why_partial(self, records: list[Record]) -> str:
        """Say why the session is not one of the whole suite; "" if nothing speaks against it."""
        config = self._config
        if any(record["k"] == "deselected" for record in records):
            return "tests were deselected"
        given = config.args_source is config.ArgsSource.ARGS
        named = [arg for arg in config.args if "::" in arg or arg.endswith(".py")] if given else []
        return f"it ran {named[0]} alone" if named else ""

    def _update(self, stopped: str) -> None:
        path, how = self._settings.baseline, self._settings.baseline_update
        if stopped:
            self.failure = f"the baseline was not changed: {stopped}"
            return
        try:
            with alone(path):
                before = self._as_it_is_now(path)
                after = before.updated(self.result.seen, self.gone, add=how == "all")
                if how == "all" or after != before:
                    after.write(path)
        except BaselineError as error:
            self.failure = str(error)
            return
        self.written = after.changes_since(before)

    def _as_it_is_now(self, path: str) -> CheckBaseline:
        """Read the file again: another session may have changed it meanwhile, or written the first.

        Raises:
            BaselineError: It cannot be read.

        """
        if os.path.lexists(path):
            return CheckBaseline.read(path, BASELINE_UPDATE.flag)
        terms = self._acceptance.terms
        return CheckBaseline(terms.entries if terms is not None else {})
