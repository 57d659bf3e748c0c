"""Tells other plugins of touches and checked captures, by the hooks that they have.

And tells on stderr why the session fails, where there is no summary that says it.

One place for the whole session: the pytest process, or the controller of pytest-xdist. It reads the
ledger, which has the touches of all processes, and the reports, which carry the verdicts.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

import pytest

from pytest_cudafork.capture.interface.check_names import CARRIED, LOOKED_AT
from pytest_cudafork.check.failing import fail_session, reasons_of
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.hooks.calling import HookFailure, call_each, has_hook

if TYPE_CHECKING:
    from pytest_cudafork.check.watch import Watch
    from pytest_cudafork.observe.base.ledger import LedgerReader

TOUCH = "pytest_cudafork_touch"
CAPTURE = "pytest_cudafork_capture_checked"


def say_untold(text: str, stream: TextIO | None) -> None:
    """Write what no summary has told, with escapes for what the stream's encoding has not."""
    if text and stream is not None and not stream.closed:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


class Announcer:
    """The plugin object.

    Args:
        config: The session's configuration.
        watch: What has the ledger; None: nothing is checked, and no touch is seen.

    """

    def __init__(self, config: pytest.Config, watch: Watch | None) -> None:
        self._config = config
        self._pid = os.getpid()
        self._reader: LedgerReader | None = watch.observer.ledger.reader() if watch else None
        self._told = False
        self.failures: list[HookFailure] = []
        """What hooks of others have raised."""

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self) -> None:
        """Tell what was touched until a file was collected."""
        self._tell_touches()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell what was touched and checked until this report."""
        self._tell_touches()
        self._tell_captures(report)

    def _tell_captures(self, report: pytest.TestReport) -> None:
        carried, looked = getattr(report, CARRIED, None), getattr(report, LOOKED_AT, None)
        if not (carried or looked) or self._pid != os.getpid():
            return
        if not has_hook(self._config, CAPTURE):
            return
        from pytest_cudafork.capture.in_tests.told import as_verdict
        from pytest_cudafork.capture.story.verdicts import CheckedCapture

        captures = [CheckedCapture.from_plain(data) for data in carried or ()]
        if looked:
            captures.append(as_verdict(looked, failed=report.failed))
        for capture in captures:
            self._call(CAPTURE, capture=capture, nodeid=report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell what is left; a hook that raised fails the session."""
        self._tell_touches()
        if self._reader is not None:
            self._reader.close()
        if self.failures:
            fail_session(session, [each.line() for each in self.failures], without_tests=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell which hooks raised, each line once."""
        self._told = True
        if not self.failures:
            return
        terminalreporter.section("hooks of other plugins", red=True, bold=True)
        for failure in dict.fromkeys(self.failures):
            times = self.failures.count(failure)
            often = f" ({times} times)" if times > 1 else ""
            terminalreporter.write_line(f"ERROR: {failure.line()}{often}", red=True)
        terminalreporter.write_line("The session fails for that, whatever its tests say.")

    def pytest_unconfigure(self) -> None:
        """Tell this and all other reasons where there was no summary: ``-p no:terminal``."""
        if self._told or self._pid != os.getpid():
            return
        told = [f"ERROR: {words}\n" for words in reasons_of(self._config)]
        say_untold("".join(told), sys.stderr)
        self._told = True

    def _tell_touches(self) -> None:
        # the fork of an isolated test has these hooks, too
        if self._reader is None or self._pid != os.getpid() or not has_hook(self._config, TOUCH):
            return
        for record in self._reader.new():
            if record["k"] == "touch":
                from pytest_cudafork.observe.story.touch import Touch

                touch = Touch.from_record(record)
                self._call(TOUCH, touch=touch, nodeid=touch.test.rpartition(" (")[0])

    def _call(self, name: str, **arguments: object) -> None:
        for _, failure in call_each(self._config, name, {"config": self._config, **arguments}):
            if failure is not None:
                self.failures.append(failure)
