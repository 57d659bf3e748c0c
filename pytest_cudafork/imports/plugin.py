"""The audit's hooks in a pytest session, from the options to the section "imports".

A worker of pytest-xdist imports the modules that it is given; the controller gathers the records,
which travel with the reports, and writes what is written once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from pytest_cudafork.baseline.file import BaselineError
from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.counted import count_of
from pytest_cudafork.imports import items
from pytest_cudafork.imports.audit import plan
from pytest_cudafork.imports.audit.baseline import Baseline
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.audit.coordinator import AuditCoordinator
from pytest_cudafork.imports.items import AUDIT, ImportItem
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.report.summary import Line, summary_lines, write_results
from pytest_cudafork.imports.since.change_audit import ChangeAudit
from pytest_cudafork.imports.since.git import GitError
from pytest_cudafork.imports.values import records
from pytest_cudafork.imports.values.records import ImportRecord
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.values.targets import FoundModule, Target, targets_of
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.process import termination
from pytest_cudafork.settings.import_options import (
    BASELINE,
    IMPORT_OPTIONS,
    PACKAGES,
    SINCE,
    WITHOUT,
)
from pytest_cudafork.settings.markers import Marks, put_marks
from pytest_cudafork.settings.sources import COMMAND_LINE, source_of

_CARRIED = "_cudafork_import"
"""The attribute of a report under which its record travels."""
_TOLD = "_cudafork_imports"
"""The key in the input of a worker under which it is told what only the controller can know."""


class ImportAudit:
    """The plugin object."""

    coordinator: AuditCoordinator

    def __init__(self, config: pytest.Config) -> None:
        """Read the settings, and take the names of the audit's tests out of the arguments.

        Raises:
            pytest.UsageError: The baseline cannot be read, or an option is in vain.

        """
        self._config = config
        self._pid = os.getpid()
        self.settings = config.stash[SESSION].settings.imports
        self._names = items.take_names(config, self.settings.packages)
        paths_given = config.args_source is config.ArgsSource.ARGS and bool(config.args)
        selection = ("keyword", "markexpr", "deselect")
        self._others_asked_for = paths_given or any(config.getoption(n, None) for n in selection)
        on_command_line = getattr(config.option, PACKAGES.name, None) is not None
        self.alone = not paths_given and (on_command_line or bool(self._names))
        """Whether nothing else is to run."""
        # the ini file asks for an audit with the whole suite, not with every single test
        self.is_wanted = on_command_line or bool(self._names) or not paths_given
        if self.alone:
            config.args[:] = []
        self._told = _told(config)
        self._is_worker = hasattr(config, "workerinput")
        if not self.is_wanted and not self._is_worker:
            self._check_used()
        self.baseline = self._read_baseline() if self.is_wanted else Baseline()
        self._found: dict[str, list[FoundModule]] = {}
        self._targets: list[Target] = []
        self._gathered: list[CheckedRecord] = []
        self._summary: list[Line] = []
        self.change: ChangeAudit | None = None
        """The change that is audited, and nothing else; None: all modules are."""
        self._reached: frozenset[str] = frozenset()
        """The imports that the change reaches, by the names of their tests."""
        self.findings: Findings | None = None
        """What was found, when the session has finished."""
        config.stash[AUDIT] = self

    @property
    def baseline_name(self) -> str:
        """The baseline's file, short."""
        return short_path(self.settings.baseline, str(self._config.rootpath))

    def accepts(self, record: ImportRecord) -> bool:
        """Whether the baseline holds a module, or will when the session ends."""
        return record.verdict.touched and (self.settings.update or self.baseline.accepts(record))

    def _check_used(self) -> None:
        """Check that nobody has typed how to audit where nothing is audited.

        ``addopts`` waits for the whole suite, as the ini file does.

        Raises:
            pytest.UsageError: Somebody has.

        """
        for option in IMPORT_OPTIONS:
            given = getattr(self._config.option, option.name, None)
            if given and source_of(self._config, option, option.flag) == COMMAND_LINE:
                raise pytest.UsageError(
                    f"{option.flag}: nothing is audited: where paths are given, the package is "
                    f"named with {PACKAGES.flag}=PKG ({PACKAGES.flag}=: leave it so)"
                )

    def _read_baseline(self) -> Baseline:
        if self._told is not None:
            return Baseline.from_plain(self._told["accepted"])
        path = self.settings.baseline
        if not path or (self.settings.update and not os.path.exists(path)):
            return Baseline()
        try:
            return Baseline.read(path)
        except BaselineError as error:
            raise pytest.UsageError(f"{BASELINE.flag}: {error}") from None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist what the baseline accepts, and what a change reaches.

        One on another host has neither the file nor git's folder with the record.
        """
        told = {
            "accepted": self.baseline.to_plain(),
            "reached": sorted(self._reached),
            "few": self.change is not None and self.change.few,
        }
        node.workerinput[_TOLD] = json.dumps(told)  # execnet takes not every text

    # -- collection ------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Find the modules.

        Raises:
            pytest.UsageError: A package is not there, or another option is wrong.

        """
        settings = self._config.stash[SESSION].settings
        try:
            self._found = plan.find_all(self.settings.packages, self.settings.exclude)
        except ValueError as error:
            raise pytest.UsageError(f"{PACKAGES.flag}: {error}") from None
        targets = targets_of(self._found, self.settings.without)
        audit_settings = plan.settings_of(self.settings, settings.device)
        self._targets = items.select(targets, self._names)
        few = False
        if self.settings.since:
            audit_settings = audit_settings._replace(files=True)
            few = self._look_at_change(audit_settings, targets) and not audit_settings.memory
            self._targets = [each for each in self._targets if each.nodeid in self._reached]
        self.coordinator = AuditCoordinator(audit_settings, self._found, afresh=few)
        self._config.add_cleanup(self._close)
        if not self._is_worker:
            self._check_hidden()

    def _look_at_change(self, settings: AuditSettings, targets: Sequence[Target]) -> bool:
        """Find the imports that the change reaches; return whether they are few."""
        if self._told is not None:
            self._reached = frozenset(self._told["reached"])
            return bool(self._told["few"])
        folder = str(self._config.rootpath)
        try:
            self.change = ChangeAudit(self.settings.since, self._found, settings, folder)
        except GitError as error:
            raise pytest.UsageError(f"{SINCE.flag}: {error}") from None
        self._reached = frozenset(target.nodeid for target in self.change.choose(targets))
        return self.change.few

    def _check_hidden(self) -> None:
        try:
            self.coordinator.check_hidden(self.settings.without)
        except ValueError as error:
            raise pytest.UsageError(f"{WITHOUT.flag}: {error}") from None

    def pytest_report_header(self) -> list[str]:
        """Say what is audited."""
        counts = [
            f"{package} ({count_of(len(modules), 'module')})"
            for package, modules in self._found.items()
        ]
        since = [] if self.change is None else self.change.lines()
        return [
            f"cuda-fork: audit of the imports of {', '.join(counts)}, {self.coordinator.words}",
            *(f"cuda-fork: {line}" for line in since),
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Add the packages to what the session collects."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            named = {name.partition("::")[0] for name in self._names}
            report.result = [
                *report.result,
                *(
                    items.package_node(collector, package, modules, self._targets)
                    for package, modules in self._found.items()
                    if not named or package in named
                ),
            ]
        return report

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Keep isolation and the lending of GPUs away from the audit's tests."""
        if isinstance(item, ImportItem):
            put_marks(item, Marks(left_alone=True))

    def pytest_deselected(self) -> None:
        """Note that there were tests; workers of pytest-xdist do not tell the controller."""
        self._others_asked_for = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say what will be asked for; a worker of pytest-xdist gets its tests one by one."""
        if not self._is_worker:
            own = [item.target for item in session.items if isinstance(item, ImportItem)]
            self.coordinator.expect(own)

    # -- tests -----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run one of the audit's tests: wait for its answer, then have its outcome reported."""
        if not isinstance(item, ImportItem) or self._pid != os.getpid():
            return None
        from pytest_cudafork.compat.pytest_internals import run_test_protocol

        termination.stop_time_limit(item)  # an import has its own, and its turn may come late
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if self._is_worker:
            ahead = [nextitem.target] if isinstance(nextitem, ImportItem) else []
            self.coordinator.ask([item.target, *ahead])
        with termination.interrupted(item), termination.sigterm_ends_session(item.nodeid):
            item.answer()
        run_test_protocol(item, nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report the import's own duration, and the record."""
        report = yield
        checked = item.checked if isinstance(item, ImportItem) else None
        is_main = report.when == "call" or (report.when == "setup" and report.failed)
        if checked is not None and is_main:
            report.duration = checked.record.seconds
            plain = records.to_plain(checked.record)
            root = str(self._config.rootpath)
            carried = {"record": plain, "artifact": checked.artifact, "root": root}
            setattr(report, _CARRIED, carried)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the records, those of workers too."""
        data: dict[str, Any] | None = getattr(report, _CARRIED, None)
        if data is not None and not self._is_worker:
            plain = records.at_home(data["record"], data["root"], str(self._config.rootpath))
            record = records.from_plain(plain)
            self._gathered.append(CheckedRecord(record, data["artifact"]))

    # -- the end ---------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End what still runs; write the picture and the baseline."""
        self._close()
        if self._is_worker or self._pid != os.getpid():
            return
        if self._reaches_nothing(exitstatus):
            # as it should be: pytest takes no tests for a mistake in its arguments
            exitstatus = session.exitstatus = pytest.ExitCode.OK
        elif not self._gathered:
            return
        finished = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        findings = self.findings = Findings(
            tuple(self._gathered),
            self._found,
            self.settings,
            self.baseline,
            str(self._config.rootpath),
            complete=finished and not session.shouldstop and not session.shouldfail,
            change=self.change,
        )
        written = write_results(findings)
        if bad := [line.text for line in written if line.tone == "bad"]:
            fail_session(session, bad)
        full = int(self._config.getoption("verbose", 0)) > 0
        self._summary = [*summary_lines(findings, full=full), *written]

    def _reaches_nothing(self, exitstatus: int) -> bool:
        """Whether there was nothing to do because the change reaches nothing.

        Where other tests were asked for and none ran, pytest says so as ever.
        """
        if self._others_asked_for and not self.alone:
            return False
        nothing = self.change is not None and not any(each.wanted for each in self.change.chosen)
        is_dry = self._config.getoption("collectonly", False)
        return nothing and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not is_dry

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what was found."""
        if not self._summary:
            return
        terminalreporter.section("imports")
        for line in self._summary:
            terminalreporter.write_line(line.text, **line.markup)

    def _close(self) -> None:
        if self._pid == os.getpid() and hasattr(self, "coordinator"):
            self.coordinator.close()


def _told(config: pytest.Config) -> dict[str, Any] | None:
    """Return what the controller says, in a worker of pytest-xdist."""
    text = getattr(config, "workerinput", {}).get(_TOLD)
    told: dict[str, Any] | None = None if text is None else json.loads(text)
    return told
