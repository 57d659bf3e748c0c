"""What stands in a child for all that reports: each report and warning becomes a message.

A report is packed as plain data with what pytest's own serialization leaves out; the parent reads
it with ``report_data.load``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from pytest_cudafork.compat import debuggers, pluggy_internals, pytest_internals, pytest_reports
from pytest_cudafork.compat.plugins import bdd, benchmark, forked, rerunfailures, timeout
from pytest_cudafork.compat.unpatched import io
from pytest_cudafork.isolate import live_text
from pytest_cudafork.isolate.captured_output import Kept
from pytest_cudafork.isolate.child import capture_files, plugins
from pytest_cudafork.isolate.passed_phases import PassedPhases, pack_phase, sign_of
from pytest_cudafork.isolate.report_data import (
    CASE,
    MEASURED,
    SAME,
    SCENARIO,
    SHOWN,
    SUBTESTS,
    SUITE,
    TIMES,
    Likeness,
    likeness,
)
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.protocol import caught_warnings, frames, messages

_TELLING_HOOKS = (
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_warning_recorded",
)
"""Hooks by which a parent tells the user and other processes; a child tells its parent only."""
_TELL_WHAT_FAILED = ("unraisableexception", "threadexception")
"""pytest's plugins that tell what failed where nobody could hear of it, at the end of a phase."""


class Reporter:
    """The plugin that stands in the child for everything that reports in a parent."""

    def __init__(self, config: pytest.Config) -> None:
        """Registered before a fork where there is one; it is of no effect there."""
        self.config = config
        self._channel: Channel | None = None
        self._packer = ReportPacker(config)
        self._terminal = live_text.ChildTerminal(config, self._tell, self._wait)
        self._tell_what_failed = _caller_of(config, _TELL_WHAT_FAILED, "pytest_runtest_teardown")
        self._starts = 0
        self.kept: Kept | None = None
        """Where the parent finds what a phase has written if the report never comes."""
        self.passed: PassedPhases | None = None
        """Where it finds phases that have passed and are told later."""
        self._sign: int | None = None
        self._together = self._leads_on = False
        self._session: pytest.Session | None = None
        self._heard: Any = messages.Shown()
        """The last answer of the parent."""
        self.all_well = True
        """Whether all that was reported of the test is such that the next one will be wanted."""

    def take_over(self, session: pytest.Session) -> None:
        """Let what is told in this process reach this, the session's counters and live logs only.

        The other receivers (terminal, JUnit file, xdist's connection, the user's hooks) are the
        parent's; they hear of it there.
        """
        self._session = session
        self._packer.begin()
        self._terminal.take_over()
        debuggers.refuse_pytests()  # a fresh interpreter has pytest's by now
        # the output of the test is in a file that it shares with what it forked
        capture_files.call_before_output_is_read(self.config, self._leave_if_not_mine)
        manager: Any = self.config.pluginmanager
        if manager.has_plugin(forked.PEER):  # it would fork once more
            manager.unregister(name=forked.PEER)
        if timeout.is_loaded():
            manager.register(plugins.TimeLimit(self._tell))
        if rerunfailures.is_loaded():
            manager.register(plugins.Phases(self._tell))
        keep = (self, session, manager.get_plugin("logging-plugin"))
        for name in _TELLING_HOOKS:
            pluggy_internals.keep_plugins(manager, name, keep)

    def report_to(
        self,
        channel: Channel | None,
        position: dict[str, Any] | None = None,
        sign: int | None = None,
        *,
        together: bool = False,
        ask_position: bool = False,
        leads_on: bool = False,
    ) -> None:
        """Report to this channel; None: to nobody any more.

        Args:
            channel: The channel.
            position: Where the terminal stands.
            sign: As of ``Run.signs``: phases that have passed are told by their times alone.
            together: Whether they are told with the end of the test.
            ask_position: Whether to ask where the terminal stands, should that matter.
            leads_on: Whether another test follows in this process.

        """
        if channel is None:
            self._terminal.flush()
        self._channel = channel
        self._starts = 0
        if channel is not None and self.kept is not None:
            self.kept.begin()
        self._sign, self._leads_on, self.all_well = sign, leads_on, True
        self._together = together
        if together and self.passed is not None:
            self.passed.begin()
        self._packer.begin_test()
        self._terminal.begin(position, self._ask_position if ask_position else None)

    def pytest_runtest_logstart(self) -> None:
        """Say that a plugin runs the test once more; the first time the parent knows of."""
        self._starts += 1
        if self._starts > 1:
            self._tell(messages.RunsAgain())
            if self.kept is not None:
                self.kept.begin()

    def _leave_if_not_mine(self) -> None:
        """End a process that the test has forked and that ran out of it, before others see it."""
        if self._channel is not None:
            self._channel.leave_if_not_mine()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Collect what the tests of this process have left, and let pytest tell what that says.

        pytest does so at the end of its session, which a forked process does not come to. Here it
        is still within the recording of warnings.
        """
        result = yield
        if nextitem is None and self._channel is not None:
            freeze_before_fork.collect_unfrozen()
            self._tell_what_failed(item=item, nextitem=None)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep what the phase has written, for the case that the report never comes."""
        mine = self._channel is not None and self._channel.is_mine
        if mine and self.kept is not None and call.when is not None:
            sections = pytest_internals.sections_of(item, call.when)
            if sections:
                self.kept.keep(call.when, sections)
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report as it comes."""
        if self._channel is None:
            return
        self._leave_if_not_mine()
        self._terminal.flush()
        self.all_well = self.all_well and not report.failed
        if self._is_as_expected(report) and self.passed is not None:
            if self._together:
                self.passed.hold(report)
            else:
                self._tell(messages.Passed(pack_phase(report)))
            return
        data = self._packer.pack(report)
        wait = self._terminal.direct or self._may_stop(report)
        if self._tell(messages.Report(data, wait=wait)) and wait:
            self._wait()

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Send a warning of the test; those of collection the parent has seen itself."""
        if when == "runtest" and self._channel is not None:
            self._tell(caught_warnings.pack(warning_message))

    def _is_as_expected(self, report: pytest.TestReport) -> bool:
        """Whether a report says that its phase has passed, of a test as the parent knows it."""
        if self._sign is None or not self._packer.says_no_more(report):
            return False
        return sign_of(report.location, report.keywords) == self._sign

    def _may_stop(self, report: pytest.TestReport) -> bool:
        """Whether the parent's session may be stopped by a report, which matters to this test.

        It then tears everything down with this test, and a failed subtest ends it.
        """
        if report.when == "teardown":
            return False
        if type(report) is not pytest.TestReport:  # a subtest's
            return report.failed
        return self._leads_on and (report.failed or self._sign is None)

    @property
    def untold(self) -> bytes:
        """The phases that have passed and are not told yet."""
        return b"" if self._sign is None or self.passed is None else self.passed.held

    def _tell(self, message: messages.Message) -> bool:
        if self._channel is None or not self._channel.is_mine:
            return False
        if self.passed is not None and self.untold:  # the order is kept
            self._channel.send(messages.Passed(self.untold))
            self.passed.drop()
        self._channel.send(message)
        return True

    def _ask_position(self) -> dict[str, Any] | None:
        """Ask the parent where its terminal stands."""
        if self._tell(messages.AsksPosition()) and self._channel is not None:
            answer = self._channel.receive_answer()
            if answer is not None:
                return answer.position  # type: ignore[no-any-return]
        return None

    def _wait(self) -> None:
        """Wait until the parent has shown the last message; take over whether it stops."""
        if self._channel is None or not self._channel.is_mine:
            return
        answer, session = self._channel.receive_answer(), self._session
        if answer is not None and session is not None:
            # an answer that is new came up later than what is set here
            if answer.shouldstop and answer.shouldstop != self._heard.shouldstop:
                session.shouldstop = answer.shouldstop
            if answer.shouldfail and answer.shouldfail != self._heard.shouldfail:
                session.shouldfail = answer.shouldfail
            self._heard = answer


def _caller_of(config: pytest.Config, plugins: Sequence[str], hook: str) -> Callable[..., object]:
    """Return what calls the implementations of a hook that these plugins have."""
    manager = config.pluginmanager
    others = [one for name, one in manager.list_name_plugin() if name not in plugins]
    return manager.subset_hook_caller(hook, others)


_FIELDS = vars(pytest.TestReport("", ("", None, ""), {}, "passed", None, "call")).keys()
"""What a report has that nobody has added anything to."""


class ReportPacker:
    """Makes plain data of the reports of one process.

    Args:
        config: The configuration of the child's session.

    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._xml: Any = None
        self._told = self._measured = 0
        self._before: Likeness | None = None
        """What the last report was like, if another one may be as it was."""
        self._shortens = False

    def begin(self) -> None:
        """Begin in the child, after a fork if there is one: what is there is told already."""
        self._xml = pytest_reports.junit_xml(self._config)
        self._told = 0 if self._xml is None else len(self._xml.global_properties)
        self._measured = len(benchmark.measured(self._config))

    def begin_test(self) -> None:
        """Begin with the reports of a test: the first one is whole."""
        self._before = None
        self._shortens = pytest_reports.only_pytest_serializes(self._config)

    def pack(self, report: pytest.TestReport) -> dict[str, Any]:
        """Return a report as plain data for ``report_data.load``."""
        like = likeness(report) if self.says_no_more(report) else None
        before, self._before = self._before, like
        if like is not None and like == before:
            times = {name: getattr(report, name) for name in TIMES}
            return {"when": report.when, "outcome": report.outcome, **times, SAME: True}
        return self._pack_whole(report)

    def says_no_more(self, report: pytest.TestReport) -> bool:
        """Whether a report says that its phase has passed, and nothing else of it."""
        return (
            self._shortens
            and type(report) is pytest.TestReport
            and report.outcome == "passed"
            and report.longrepr is None
            and not (report.sections or report.user_properties)
            and all(type(getattr(report, name)) is float for name in TIMES)
            and report.__dict__.keys() == _FIELDS  # a test may have replaced vars()
            and self._xml is None
            and not _failed_subtests(self._config, report)
            and self._measured == len(benchmark.measured(self._config))
            and bdd.pack(report) is None
        )

    def _pack_whole(self, report: pytest.TestReport) -> dict[str, Any]:
        config = self._config
        data: Any = pytest_reports.to_plain(config, report)
        longrepr: Any = report.longrepr
        if isinstance(data.get("longrepr"), str) and hasattr(longrepr, "toterminal"):
            data[SHOWN] = _rendered(longrepr)
        failed = _failed_subtests(config, report)
        if failed:
            data[SUBTESTS] = failed
        scenario = bdd.pack(report)
        if scenario is not None:
            data[SCENARIO] = scenario
        if self._xml is not None:
            self._add_xml(report, data)
        if report.when == "teardown":  # until then a benchmark may be given more to say
            measured = benchmark.measured(config)
            new, self._measured = measured[self._measured :], len(measured)
            if new:
                data[MEASURED] = [benchmark.pack(each) for each in new]
        packed: dict[str, Any] = frames.plain(data)
        return packed

    def _add_xml(self, report: pytest.TestReport, data: dict[str, Any]) -> None:
        told, self._told = self._told, len(self._xml.global_properties)
        if self._told > told:
            data[SUITE] = self._xml.global_properties[told:]
        names = (report.nodeid, getattr(report, "id", None))  # pytest 9.2 has an object for it
        for key, reporter in self._xml.node_reporters.items():
            if key[0] in names and reporter.attrs:
                data[CASE] = dict(reporter.attrs)


def _rendered(longrepr: Any) -> list[str] | None:
    """Return a representation without and with its colors; None if it cannot be written again."""
    texts = []
    for marked in (False, True):
        file = io.StringIO()
        writer = pytest_internals.terminal_writer(file, colors=marked)
        try:
            longrepr.toterminal(writer)
        except Exception:  # a plugin's own code; it was rendered once, which has to do
            return None
        texts.append(file.getvalue())
    return texts


def _failed_subtests(config: pytest.Config, report: pytest.TestReport) -> int:
    counts = pytest_reports.subtest_counts(config)
    return int(counts.get(getattr(report, "id", report.nodeid), 0)) if counts else 0
