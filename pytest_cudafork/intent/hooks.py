"""The hooks that see tests which do not run as they were meant to.

A report is judged where its test was run from, before anybody else sees it, and carries what was
found: to the controller of pytest-xdist, and into a JUnit file. The pytest process counts.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from pytest_cudafork.baseline.file import BaselineError, check_writable
from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.compat import pytest_internals, pytest_reports
from pytest_cudafork.intent import baseline, promise
from pytest_cudafork.intent.kinds import Slip, skip_slip
from pytest_cudafork.intent.summary import summary_lines
from pytest_cudafork.isolate.start_methods import ran_otherwise
from pytest_cudafork.observe.base.ledger import LedgerReader
from pytest_cudafork.settings.intent import GPU_SEEN, GPU_SKIPPED, KINDS, SPAWNED, effective
from pytest_cudafork.settings.markers import marks_of
from pytest_cudafork.settings.option import uses_debugger
from pytest_cudafork.settings.options import BASELINE

CARRIED = "cudafork_intent"
"""The attribute of a report, and the property of a test, that holds what was found."""


class IntentHooks:
    """The plugin object."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the baseline.

        Raises:
            pytest.UsageError: It cannot be read, or not be written though it is to be.

        """
        self._config = config
        session = config.stash[SESSION]
        self._settings = session.settings
        self._watch = session.watch
        self._is_worker = hasattr(config, "workerinput")
        self.expected = self._settings.expect_gpus
        self.errors = effective(
            self._settings.intent, self.expected, checked=self._watch is not None
        )
        self._everything = self._settings.baseline_update == "all"
        try:
            path = self._settings.baseline
            self.known = baseline.read_known(path, may_be_missing=self._everything) if path else {}
            if self._settings.baseline_update and not self._is_worker:
                check_writable(path)
        except BaselineError as error:
            raise pytest.UsageError(f"{BASELINE.flag}: {error}") from None
        self._pid = os.getpid()
        self._wishes: dict[str, int] = {}
        """The GPUs that tests ask for by their marker."""
        self._shown: set[str] = set()
        """Tests that have GPUs shown to them that are not there."""
        self._words: dict[str, list[str]] = {}
        """What was found of tests, for the reports of their later phases: JUnit takes the last."""
        self._reader: LedgerReader | None = None
        self._touched: set[str] = set()
        self._told: set[str] = set()
        """Tests that run, and of which it has been told that they saw a GPU."""
        self._sees_gpus = False
        self.slips: dict[tuple[str, str], Slip] = {}
        """What was found, by kind and test."""
        self._called: dict[str, bool] = {}
        """Whether the body of a test has passed, of those that were not skipped before or in it."""
        self._ran: dict[str, bool] = {}
        """The same, of tests that have come to their end."""
        self.written = ""
        """What was written, in words."""
        self.failure = ""
        """Why the file was not changed though it was to be."""
        self.gone: tuple[tuple[str, str], ...] = ()
        """The entries that are to be removed: the test ran as it was meant to."""
        self.shortage = ""
        """Why the session does not have the GPUs that it was promised."""

    def is_accepted(self, slip: Slip) -> bool:
        """Whether the baseline has it, or will have it."""
        return self._everything or (slip.kind, slip.nodeid) in self.known

    # -- where tests are run from ----------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember how many GPUs each test asks for; see whether this process shows any."""
        for item in session.items:
            wish = marks_of(item).gpus
            if wish is not None:
                self._wishes[item.nodeid] = wish.n
            if "phantom_cuda" in getattr(item, "fixturenames", ()):
                self._shown.add(item.nodeid)
        if self.expected == 0 and self._watch is not None and session.items:
            self._sees_gpus = promise.gpus_of(self._config) > 0
            self._reader = self._watch.observer.ledger.reader()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Judge a report; count what another process has found."""
        if self._pid != os.getpid():  # the fork of an isolated test has these hooks, too
            return
        if getattr(report, CARRIED, None) is None:
            found = list(self._slips(report))
            setattr(report, CARRIED, [list(slip) for slip in found])
            words = self._words.setdefault(report.nodeid, [])
            words += [slip.words for slip in found]
            report.user_properties.extend((CARRIED, each) for each in words)
            for slip in found:
                self._fail(report, slip)
        self._count(getattr(report, CARRIED))
        whole = report.when == "call" and not pytest_reports.is_of_subtest(report)
        if whole and (report.outcome != "skipped" or hasattr(report, "wasxfail")):
            self._called[report.nodeid] = report.outcome == "passed"
        if report.when == "teardown":
            if report.nodeid in self._called:
                self._ran[report.nodeid] = self._called.pop(report.nodeid)
            self._words.pop(report.nodeid, None)
            self._told.discard(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Judge a file that was skipped as a whole; count what a worker has found."""
        if not self.expected or self._pid != os.getpid():
            return
        if report.outcome == "skipped" and getattr(report, CARRIED, None) is None:
            slip = skip_slip(report.nodeid, reason_of(report.longrepr), 0, self.expected)
            setattr(report, CARRIED, [] if slip is None else [list(slip)])
            if slip is not None:
                self._fail(report, slip)
                if self._is_worker and not isinstance(report.longrepr, tuple):  # it fails now
                    # pytest-xdist shows the same text of several workers once
                    report.longrepr = str(report.longrepr)
        self._count(getattr(report, CARRIED, None) or ())

    def _slips(self, report: pytest.TestReport) -> Iterable[Slip]:
        """Yield what is wrong with a report that was made here."""
        if type(report) is not pytest.TestReport:  # a subtest's
            yield from self._skipped(report, part=True)
            return
        why = getattr(report, "isolation_why", "")
        spawned = getattr(report, "isolation", "") == "spawn" and why
        ends = report.when == "call" or (report.when == "setup" and report.outcome != "passed")
        if spawned and ends:
            yield Slip(SPAWNED, report.nodeid, str(why))
        elif ends:
            for wanted, ran, place in ran_otherwise(report.user_properties):
                if wanted == "fork":
                    why = f"it is marked start_methods({wanted!r}), and ran {ran}: {place}"
                    yield Slip(SPAWNED, report.nodeid, why)
        yield from self._skipped(report)
        if report.when == "setup":
            self._told.discard(report.nodeid)
        # a set-up that passed has its call, and a teardown may touch, too
        judged = ends or report.when == "teardown"
        if judged and report.nodeid not in self._told and self._saw_gpu(report.nodeid):
            self._told.add(report.nodeid)
            yield Slip(GPU_SEEN, report.nodeid, "it initialized CUDA where there are GPUs")

    def _skipped(self, report: pytest.TestReport, *, part: bool = False) -> Iterable[Slip]:
        """Yield what is wrong with a skip; of a ``part``, a subtest, its reason has to say it."""
        if report.outcome != "skipped" or hasattr(report, "wasxfail") or not self.expected:
            return
        wish = self._wishes.get(report.nodeid, 0)
        if part and wish <= self.expected:
            wish = 0
        slip = skip_slip(report.nodeid, reason_of(report.longrepr), wish, self.expected)
        if slip is not None:
            yield slip

    def _saw_gpu(self, nodeid: str) -> bool:
        """Whether a test, or a process of it, has touched CUDA where that shows a GPU."""
        if self._reader is None or not self._sees_gpus:
            return False
        for record in self._reader.new():
            if record["k"] == "touch":
                self._touched.add(str(record.get("test", "")).rpartition(" (")[0])
        return nodeid in self._touched and nodeid not in self._shown

    def _fail(self, report: pytest.TestReport | pytest.CollectReport, slip: Slip) -> None:
        """Fail a report that has not failed by itself, if that is an error."""
        if slip.kind not in self.errors or self.is_accepted(slip) or report.outcome == "failed":
            return
        if hasattr(report, "wasxfail"):
            return
        skip = report.longrepr if isinstance(report.longrepr, tuple) else None
        where = f"\n\nIt was skipped at {skip[0]}:{skip[1]}." if skip else ""
        text = (
            f"{slip.words}{where}\n\nThis session makes that an error (--cuda-fork-intent). To "
            f"accept it for now: {BASELINE.flag}=FILE {BASELINE.flag}-update."
        )
        path, line, _ = getattr(report, "location", None) or (report.nodeid, None, "")
        if skip:
            path, line = skip[0], skip[1] - 1
        report.outcome = "failed"
        report.longrepr = pytest_internals.native_representation(
            path, (line or 0) + 1, slip.words, text
        )

    # -- the pytest process ----------------------------------------------------------------------

    def _count(self, carried: Iterable[Any]) -> None:
        for each in carried:
            slip = Slip(*(str(part) for part in each))
            if slip.kind in KINDS:
                self.slips[slip.kind, slip.nodeid] = slip

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Generator[None, None, None]:
        """See what is gone, change the baseline if it is to be, tell JUnit's file the counts."""
        if self._reader is not None:
            self._reader.close()
        if not self._is_worker:
            self._end(session)
        return (yield)

    def _end(self, session: pytest.Session) -> None:
        self.gone = tuple(
            (kind, test)
            for kind, test in self.known
            if (kind, test) not in self.slips and kind in self.judged and self._is_past(kind, test)
        )
        if self.expected and session.testscollected:
            self.shortage = promise.shortage(self._config, self.expected)
        if self._settings.baseline_update:
            self._update()
        xml = pytest_reports.junit_xml(self._config)
        if xml is not None:
            for kind in KINDS:
                xml.add_global_property(f"cudafork_{kind}", len(self.of(kind)))
        shortage = self.shortage if GPU_SKIPPED in self.errors else ""
        if self.failure or shortage:
            fail_session(session, [shortage, self.failure], without_tests=True)

    def _is_past(self, kind: str, test: str) -> bool:
        """Whether a test or a file ran as it was meant to, or its file is not there any more.

        One that was skipped or failed before its body did not run, whatever the reason; of one that
        failed in it, it is not known whether it would have seen a GPU.
        """
        path = os.path.join(str(self._config.rootpath), test.partition("::")[0])
        if not os.path.exists(path):
            return True
        if kind == GPU_SEEN:
            return self._ran.get(test, False)
        if kind == SPAWNED and not self._isolates:
            return False
        below = (f"{test}::", f"{test}/")  # of a file that was skipped as a whole
        return test in self._ran or any(one.startswith(below) for one in self._ran)

    @property
    def _isolates(self) -> bool:
        """Whether this session gives tests processes of their own at all."""
        return self._settings.isolate != "none" and not uses_debugger(self._config)

    @property
    def judged(self) -> set[str]:
        """The kinds that this session can know of."""
        judged = {SPAWNED}
        if self.expected:
            judged.add(GPU_SKIPPED)
        if self.expected == 0 and self._watch is not None:
            judged.add(GPU_SEEN)
        return judged

    def _update(self) -> None:
        errors = [slip for slip in self.slips.values() if slip.kind in self.errors]
        try:
            self.written = baseline.update(
                self._settings.baseline, errors, self.gone, add=self._everything
            )
        except BaselineError as error:
            self.failure = str(error)

    def of(self, kind: str) -> list[Slip]:
        """Return what was found of a kind."""
        return [slip for slip in self.slips.values() if slip.kind == kind]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests did not run as they were meant to."""
        terminalreporter.section("intent")
        for line, markup in summary_lines(self, verbose=terminalreporter.verbosity > 0):
            terminalreporter.write_line(line, **markup)


def reason_of(longrepr: Any) -> str:
    """Return the reason of a skip, as pytest has it in a report."""
    if isinstance(longrepr, tuple) and len(longrepr) == 3:
        return str(longrepr[2]).removeprefix("Skipped: ")
    return str(longrepr)
