"""Writes what a session tells others: JSON, SARIF, a trace, a page, what GitHub Actions shows.

One process of a session does so: the pytest process, or the controller of pytest-xdist.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from typing import Any

import pytest

from pytest_cudafork.check.failing import fail_session, reasons_of
from pytest_cudafork.check.session import CudaForkSession
from pytest_cudafork.compat.plugins.xdist import why_given_up
from pytest_cudafork.documents.files import OutFile, is_written_once, write_files
from pytest_cudafork.documents.problem import Problem
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.report.announce import Announcer, say_untold
from pytest_cudafork.report.tests_seen import TestsSeen
from pytest_cudafork.report.trace import Trace
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.report_options import ANNOTATIONS, SUMMARY

_TITLE = "CUDA and fork"
_ENDED = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)
"""How sessions end that came to their end."""


class Outputs:
    """The plugin object.

    Args:
        config: The session's configuration.
        state: What the session holds for the plugin.
        announcer: What knows of hooks that raised.

    """

    def __init__(self, config: pytest.Config, state: CudaForkSession, announcer: Announcer) -> None:
        self._config = config
        self._state = state
        self._announcer = announcer
        self._settings = state.settings
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._tests = TestsSeen()
        self._trace = Trace()
        self._written: list[str] = []
        self._failures: list[str] = []
        self._commands: list[str] = []
        self._stopped = ""
        self._session: pytest.Session | None = None
        """The session of which files have told."""
        self._told: tuple[object, ...] = ()
        """What they have told of its end."""
        self._unwritten: tuple[str, ...] = ()
        """Which could not be written, in words."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a phase of a test."""
        if self._pid == os.getpid():
            self._tests.add(report)
            if self._settings.tells_times:
                self._trace.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take note of a collection."""
        if self._pid == os.getpid():
            self._tests.add_collection(report)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Write, when all others are done that may still change the exit status."""
        self._stopped = self._stopped or why_given_up(self._config)
        try:
            return (yield)
        except pytest.exit.Exception as error:
            self._stopped = f"Exit: {error}"
            if error.returncode is not None:  # as pytest does after this
                session.exitstatus = error.returncode
            raise
        except BaseException as error:
            # Another plugin's, such as a report of its own that cannot be written. pytest ends with
            # a traceback and looks at no status, so this is for the document alone.
            self._stopped = f"{type(error).__name__}: {error}"
            if session.exitstatus in _ENDED:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            raise
        finally:
            if self._pid == os.getpid():
                self._write(session)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Take note of what ended the session: an interrupt, ``pytest.exit``, a broken file."""
        self._stopped = excinfo.exconly().partition("\n")[0]

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Take note of an error of pytest or of a plugin."""
        self._stopped = excinfo.exconly().partition("\n")[0]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was written, and what could not be."""
        if terminalreporter.verbosity >= 0:  # as pytest of its own files
            for line in self._written:
                terminalreporter.write_line(line)
        for line in self._failures:
            terminalreporter.write_line(f"ERROR: {line}", red=True, bold=True)
        for line in self._commands:
            # GitHub knows a command by the beginning of its line
            terminalreporter.ensure_newline()
            terminalreporter.write_line(line)
        self._failures, self._commands = [], []

    def pytest_unconfigure(self) -> None:
        """Say it where there was no summary, as with ``--no-summary`` and after ``pytest.exit``."""
        if self._pid != os.getpid():
            return
        say_untold("".join(f"ERROR: {line}\n" for line in self._failures), sys.stderr)
        # GitHub knows a command by the beginning of its line
        say_untold("".join(f"\n{line}\n" for line in self._commands), sys.stdout)
        self._failures, self._commands = [], []

    def close(self) -> None:
        """Write files once more if something has come since: they would say that all was good."""
        session = self._session
        if session is None or self._pid != os.getpid() or self._told == self._end_of(session):
            return
        check, problems = self._checked()
        files = self._files(session, check, self._audited(problems), problems)
        _, failures = write_files(each for each in files if each.path and not is_written_once(each))
        if failures:
            fail_session(session)
        say_untold("".join(f"ERROR: {line}\n" for line in failures), sys.stderr)

    def _end_of(self, session: pytest.Session) -> tuple[object, ...]:
        """Return how the session has ended until now: its status, and which errors there are."""
        from pytest_cudafork.check.findings import find_in_session

        found = find_in_session(self._records(), self._settings.level)
        return int(session.exitstatus), *(each.id for each in found)

    def document_so_far(self, session: pytest.Session) -> dict[str, Any]:
        """Return the document of a session that may still write files and change its status."""
        check, problems = self._checked()
        return self._document(session, check, self._audited(problems), ())

    def _write(self, session: pytest.Session) -> None:
        check, problems = self._checked()
        files = self._files(session, check, self._audited(problems), problems)
        if environment.value(environment.GITHUB_ACTIONS) == "true":
            files += self._for_github(session, problems)
        written, failures = write_files(file for file in files if file.path)
        self._written += written
        self._failures += failures
        if failures:
            fail_session(session)
        self._session, self._told = session, self._end_of(session)
        self._unwritten = tuple(failures)

    def _files(
        self,
        session: pytest.Session,
        check: dict[str, Any] | None,
        audit: dict[str, Any] | None,
        problems: list[Problem],
    ) -> list[OutFile]:
        """Return the files that were asked for, and others without a path."""
        settings = self._settings

        def document(failures: tuple[str, ...]) -> dict[str, Any]:
            return self._document(session, check, audit, every(failures))

        def every(failures: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(dict.fromkeys((*self._unwritten, *failures)))

        return [
            OutFile(
                "SARIF", settings.sarif, lambda told: self._sarif(session, problems, every(told))
            ),
            OutFile("trace", settings.trace, lambda _: self._write_trace()),
            OutFile("JSON", settings.json, lambda told: self._write_json(document(told))),
            OutFile("HTML", settings.html, lambda told: self._write_page(document(told))),
        ]

    def _document(
        self,
        session: pytest.Session,
        check: dict[str, Any] | None,
        audit: dict[str, Any] | None,
        failures: tuple[str, ...],
    ) -> dict[str, Any]:
        from pytest_cudafork.report.session_document import session_document

        document = session_document(
            session,
            time.monotonic() - self._began,
            self._tests,
            check,
            audit,
            timeline=self._trace.timeline(self._records()),
            not_written=failures,
            reasons=reasons_of(self._config),
            stopped=self._why_stopped(session),
            looked_at_captures=self._settings.captures not in ("off", "audit"),
        )
        document["hook_errors"] = [each._asdict() for each in self._announcer.failures]
        return document

    def _records(self) -> list[Record]:
        watch = self._state.watch
        return watch.observer.records() if watch is not None else []

    def _write_json(self, document: dict[str, Any]) -> None:
        from pytest_cudafork.documents.writing import json_text, write_at_once

        write_at_once(self._settings.json, json_text(document))

    def _write_page(self, document: dict[str, Any]) -> None:
        from pytest_cudafork.documents.writing import write_at_once
        from pytest_cudafork.page.rendering import page_of

        write_at_once(self._settings.html, page_of(document))

    def _write_trace(self) -> None:
        from pytest_cudafork.documents.writing import json_text, write_at_once

        trace = self._trace.document(self._records())
        write_at_once(self._settings.trace, json_text(trace, indent=None))

    def _sarif(
        self, session: pytest.Session, problems: list[Problem], trouble: tuple[str, ...]
    ) -> None:
        from pytest_cudafork.documents.sarif import write_sarif

        finished = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        whole = finished and not self._why_stopped(session) and not trouble
        root = str(self._config.rootpath)
        write_sarif(self._settings.sarif, problems, root, successful=whole, trouble=trouble)

    def _why_stopped(self, session: pytest.Session) -> str:
        """Return what kept the session from its end, ``-x`` and the like included; or ""."""
        return str(session.shouldstop or session.shouldfail or self._stopped)

    def _for_github(self, session: pytest.Session, problems: list[Problem]) -> list[OutFile]:
        """Take note of the annotations; return the summary of the step, if there is one."""
        from pytest_cudafork.documents import github

        if ANNOTATIONS in self._settings.github:
            root = str(self._config.rootpath)
            workspace = environment.value(environment.GITHUB_WORKSPACE) or root
            self._commands = github.annotation_lines(problems, workspace)
        path = environment.value(environment.GITHUB_STEP_SUMMARY)
        if SUMMARY not in self._settings.github:
            return []

        def append(failures: tuple[str, ...]) -> None:
            told = [f"{number} {name}" for name, number in self._tests.counts().items()]
            if self._tests.skips:
                told.append(f"skipped as a whole: {len(self._tests.skips)}")
            if self._tests.errors:
                told.append(f"errors during collection: {len(self._tests.errors)}")
            if why := self._why_stopped(session):
                told.append(f"stopped by {self._stopped}" if self._stopped else why)
            wrong = [*reasons_of(self._config), *failures]
            numbers = "; ".join([", ".join(told) or "no tests", *wrong])
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{github.step_summary(_TITLE, numbers, problems)}\n")

        return [OutFile("step summary", path, append, once=True)]

    def _checked(self) -> tuple[dict[str, Any] | None, list[Problem]]:
        """Return what the check says, as plain data, and the problems but those of the audit."""
        from pytest_cudafork.report import session_problems

        root = str(self._config.rootpath)
        problems = session_problems.problems_of_captures(self._tests.captures, root)
        problems += session_problems.problems_of_graphs(self._tests.graphs, root)
        check: Any = self._config.pluginmanager.get_plugin("cudafork-check")
        watch = self._state.watch
        if watch is None or check is None:
            return None, problems
        from pytest_cudafork.check.accepted import accepted_records
        from pytest_cudafork.check.findings import find_in_session
        from pytest_cudafork.observe.story.stories import History
        from pytest_cudafork.report.session_document import check_content

        observer = watch.observer
        records = observer.records()
        level = self._state.settings.level
        found = find_in_session(records, level)
        accepted = {each for each, _ in accepted_records(records)}
        forks = session_problems.accepted_forks(records)
        accepted.update(each.id for each in forks)
        lost = check.lost(records)
        history = History(records)
        findings = [*found, *forks]
        own = session_problems.problems_of_findings(
            findings, history, accepted, root=root, simulated=observer.simulated
        )
        content = check_content(observer, level.value, records, findings, accepted, lost)
        notes = session_problems.import_notes(history, own, root)
        unseen = session_problems.unseen_problems(content["not_observable"])
        return content, [*own, *problems, *unseen, *notes]

    def _audited(self, problems: list[Problem]) -> dict[str, Any] | None:
        """Return what the import audit says, as plain data; its problems are added."""
        audit: Any = self._config.pluginmanager.get_plugin("cudafork-imports")
        findings = getattr(audit, "findings", None)
        if findings is None:
            return None
        from pytest_cudafork.imports.report.document import audit_content, audit_problems

        problems.extend(audit_problems(findings, str(self._config.rootpath)))
        return audit_content(findings)
