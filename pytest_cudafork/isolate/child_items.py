"""Owns how a child runs the tests it is told to and tells their reports and warnings.

Runs in the child, imports nothing of the parent side, and does not know how the child came to have
a session: it was forked with one, or made one of its own.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_cudafork.isolate import blackbox, child, child_call, wire


class Reporter:
    """The plugin that stands in the child for everything that reports in a parent."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.channel: child.Channel | None = None
        """Where to report to; None while there is nobody to tell."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report as it comes."""
        if self.channel is None:
            return
        self.channel.leave_if_not_mine()
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.channel.send("report", data=wire.plain(data))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Send a warning of the test; those of collection the parent has seen itself."""
        if self.channel is not None and when == "runtest":
            self.channel.send("warning", **child_call.pack_warning(warning_message))


class ItemServer:
    """Runs tests on demand, one after the other."""

    def __init__(
        self,
        reporter: Reporter,
        items: list[pytest.Item],
        errors: Sequence[str] = (),
        finder: blackbox.Finder | None = None,
    ) -> None:
        """Take the tests of this process, and what went wrong in its collection."""
        self._reporter = reporter
        self._items = items
        self._errors = list(errors)
        self._finder = finder or blackbox.Finder(items)
        self._session: pytest.Session | None = None

    def rehearse(self, times: int) -> None:
        """Go the way of a report without a test, before a fork or before there is work.

        What is looked up, imported, specialized or copied on the way then is when it matters.
        """
        if not self._items:
            return
        item = self._items[0]
        self._finder.find(*blackbox.name_of(item))
        for _ in range(times):
            for when in ("setup", "call", "teardown"):
                call = pytest.CallInfo.from_call(lambda: None, when)
                report = pytest.TestReport.from_item_and_call(item, call)
                wire.encode({"kind": "report", "data": wire.plain(report._to_json())})

    def serve(self, channel: child.Channel) -> None:
        """Run what the parent asks for, until it asks for nothing more or a test ends the session.

        Raises:
            WireError: The parent sent something that is no message.

        """
        blackbox.share_capture(self._reporter.config, channel)
        while (request := channel.receive()) is not None and request["kind"] == "run":
            if self._run(channel, request):
                return
        # the parent has ended a group before its last test
        if self._session is not None:
            self._tear_down(channel, self._session)

    def _run(self, channel: child.Channel, request: wire.Message) -> bool:
        """Run one test; True if it was the last."""
        if request["surroundings"] is not None:
            child.take_over(request["surroundings"])
        item = self._finder.find(*request["test"])
        if item is None:
            found = [one.nodeid for one in self._items]
            channel.send("missing", found=found, errors=self._errors)
            channel.send("over", last=True, shouldstop=False, shouldfail=False)
            return True
        following = self._finder.find(*request["next"]) if request["next"] else None
        session = self._session = item.session
        self._reporter.channel = channel
        last = self._protocol(channel, item, following) or following is None
        self._reporter.channel = None
        channel.leave_if_not_mine()
        channel.send(
            "over",
            last=last,
            shouldstop=wire.plain(session.shouldstop),
            shouldfail=wire.plain(session.shouldfail),
        )
        return last

    def _protocol(
        self, channel: child.Channel, item: pytest.Item, following: pytest.Item | None
    ) -> bool:
        """Run one test's protocol; True if the session ends with it."""
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            return False
        except pytest.exit.Exception as stop:
            channel.send("stop", reason=str(stop.msg), returncode=stop.returncode)
        except KeyboardInterrupt:
            channel.send("interrupt")
        except BaseException as error:
            channel.leave_if_not_mine()
            channel.send("internal", text=text_of(error))
        self._tear_down(channel, item.session)
        return True

    def _tear_down(self, channel: child.Channel, session: Any) -> None:
        """Tear down what no test will tear down any more."""
        channel.leave_if_not_mine()
        try:
            session._setupstate.teardown_exact(None)
        except BaseException as error:
            channel.leave_if_not_mine()
            channel.send("internal", text=text_of(error))


def text_of(error: BaseException) -> str:
    """Return the traceback of an error as text."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
