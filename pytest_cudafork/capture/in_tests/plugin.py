"""Which tests have their captures looked at, and the hooks around their phases.

A plugin object in each process that runs tests. It is there only if the option is on, or a test is
marked; torch is imported by the tests or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_cudafork.capture.in_tests import words
from pytest_cudafork.capture.in_tests.possible import (
    after_captures_are_possible,
    any_asks_for_graphs,
    captures_are_possible,
    options_to_add,
)
from pytest_cudafork.capture.in_tests.summary import CaptureSummary
from pytest_cudafork.capture.interface.check_names import LOOKED_AT
from pytest_cudafork.capture.interface.from_torch_on import from_torch_on
from pytest_cudafork.capture.interface.seen import Listener
from pytest_cudafork.check.failing import fail_report, fail_session
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.compat.pytest_reports import ENDS_SESSION
from pytest_cudafork.compat.torch_internals import why_captures_are_not_seen
from pytest_cudafork.settings.markers import marks_of

if TYPE_CHECKING:
    from pytest_cudafork.capture.in_tests.listeners import Watching
    from pytest_cudafork.observe.base.after_import import Failed

OFF = "off"
_HOOKS = "cudafork-captures"
_SUMMARY = f"{_HOOKS}-summary"
LISTENERS = pytest.StashKey[list[Listener]]()
"""Who else listens to the captures of a session."""


def begin(config: pytest.Config) -> None:
    """Register the hooks, if they are not there.

    Raises:
        pytest.UsageError: the option asks for what this release of torch does not allow.

    """
    how, why = config.stash[SESSION].settings.captures, why_captures_are_not_seen()
    if why and how != OFF:
        raise pytest.UsageError(f"--cuda-fork-captures={how}: {why}")
    if not config.pluginmanager.has_plugin(_HOOKS):
        config.pluginmanager.register(CaptureHooks(config), _HOOKS)
    begin_summary(config)


def begin_summary(config: pytest.Config) -> None:
    """Register what tells of all tests; in the controller of pytest-xdist it is all there is."""
    if not config.pluginmanager.has_plugin(_SUMMARY):
        settings = config.stash[SESSION].settings
        counts = settings.captures not in (OFF, "audit")
        summary = CaptureSummary(counts=counts, to_add=options_to_add(settings))
        config.pluginmanager.register(summary, _SUMMARY)


class CaptureHooks:
    """The plugin object."""

    def __init__(self, config: pytest.Config) -> None:
        how = config.stash[SESSION].settings.captures
        self._by_default = how != OFF
        self._how = how if how != OFF else "check"
        self._watching: Watching | None = None
        self._last: pytest.Item | None = None
        """The test that has ended the session."""
        self._latest: pytest.Item | None = None
        """The last test that was looked at."""
        self._graphs_are_chosen = config.stash[SESSION].settings.graphs is not None
        self._graphs_are_asked_for = False
        self._listeners = config.stash.setdefault(LISTENERS, [])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """See whether a test asks for graphs: what is computed before it is set up counts."""
        self._graphs_are_asked_for = any_asks_for_graphs(session.items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Look on while a test is set up, for the first time or again."""
        __tracebackhide__ = True
        if self._watching is not None:
            self._watching.another_test_begins()
        with self._looking_on(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Look on while a further phase of a test runs."""
        __tracebackhide__ = True
        with self._looking_on(item):
            return (yield)

    pytest_runtest_teardown = pytest_runtest_call

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a report for what was found in its phase, and let it carry the rest."""
        report = yield
        self._tell(item, report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report what was found in a test that has ended the session, of which nothing else is.

        And what a child has found that has outlived its test.
        """
        item = self._last
        if item is None and self._watching is not None and self._watching.a_child_waits():
            item = self._latest
        if item is None:
            return
        report = pytest.TestReport(
            item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "passed", None, "teardown"
        )
        self._tell(item, report)
        if LOOKED_AT in vars(report):
            item.ihook.pytest_runtest_logreport(report=report)
        if report.failed:
            fail_session(session)

    def pytest_unconfigure(self) -> None:
        """Listen no more to children that are still there."""
        if self._watching is not None:
            self._watching.close()

    def _tell(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Let a report carry what was found since the last one, and fail it for errors."""
        told = self._watching.take() if self._watching is not None else {}
        if told:
            vars(report)[LOOKED_AT] = told
            errors = [one for one in told.get("errors", ()) if report.failed or not one["raised"]]
            if errors:
                headline, text = words.headline(errors), words.failure(errors)
                fail_report(item, report, headline, text, words.SECTION)

    def _is_wanted(self, item: pytest.Item) -> bool:
        asked = marks_of(item).check_captures
        return self._by_default if asked is None else asked

    @contextlib.contextmanager
    def _looking_on(self, item: pytest.Item) -> Iterator[None]:
        """Look on at once, or as soon as the test has imported torch."""
        if not self._is_wanted(item):
            yield
            return
        self._latest = item

        def look(failed: Failed) -> contextlib.AbstractContextManager[None]:
            asked = self._graphs_are_chosen or self._graphs_are_asked_for
            at_once = asked or captures_are_possible()
            later = None if at_once else after_captures_are_possible
            watching = self._made()
            watching.ask_children()
            return watching.in_force(item.nodeid, later, failed)

        with from_torch_on("captured graphs were not looked at", look):
            try:
                yield
            except ENDS_SESSION:
                self._last = item
                raise

    def _made(self) -> Watching:
        if self._watching is None:
            from pytest_cudafork.capture.in_tests.listeners import Watching

            self._watching = Watching(self._how, *self._listeners)
        return self._watching
