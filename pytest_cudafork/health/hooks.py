"""Asks after each test whether the GPU is well, and names the first test that has left it sick.

A plugin object in each process that runs tests: the pytest process, a worker of pytest-xdist, the
process of an isolated test. What is wrong fails the test that it was found after, whatever that
test was expected to do. What becomes of the tests after it: in the process of isolated tests, they
get another one; elsewhere the mode says.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_cudafork.check.failing import fail_report
from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.unpatched import os, time
from pytest_cudafork.health import core_dump, fitness, tracebacks, words
from pytest_cudafork.health.allocator import Allocator
from pytest_cudafork.health.driver import Driver
from pytest_cudafork.settings.markers import marks_of

RECOVER = "recover"
_NOTEWORTHY_BYTES = 1 << 20
"""Less memory than this is not worth a line."""


class HealthHooks:
    """The plugin object."""

    def __init__(self, mode: str, *, isolated: bool) -> None:
        """Take the value of ``--cuda-fork-health``, and whether this process is a test's own."""
        self._recover = mode == RECOVER
        self._isolated = isolated
        self._pid = os.getpid()
        self._driver = Driver()
        self._allocator = Allocator()
        self._last_healthy = ""
        self._errors: list[BaseException] = []
        """What the phases of the current test have raised in this process."""
        self._ran_here = False
        self._began = 0.0

    # -- around a test -----------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Look at the GPU before a test, and let go afterwards of what its failure holds."""
        self._begin()
        try:
            return (yield)
        finally:
            self._end(item)

    def _begin(self) -> None:
        if self._pid != os.getpid():  # forked from a process that has run tests
            self._pid, self._last_healthy = os.getpid(), ""
            self._isolated = True
        self._ran_here, self._began = False, time.time()
        self._errors.clear()
        self._driver.begin()
        self._allocator.begin()

    def _end(self, item: pytest.Item) -> None:
        errors, self._errors = self._errors, []
        if not self._ran_here:
            return
        if errors and self._driver.is_initialized:
            tracebacks.release(errors)
        if fitness.unfit(item.config) is None:
            self._last_healthy = item.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Do not run a test in a process that is broken."""
        unfit = fitness.unfit(item.config)
        if unfit is None or marks_of(item).left_alone:
            return
        text = f"not run: {unfit.text}"
        if item.nodeid == unfit.since:  # run again by another plugin: no skip may hide its failure
            pytest.fail(text, pytrace=False)
        pytest.skip(text)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Tear everything down with the test that has left the GPU sick: no other will."""
        __tracebackhide__ = True
        try:
            yield
        finally:
            if fitness.unfit(item.config) is not None:
                pytest_internals.tear_down(item.session, None)

    # -- the questions -----------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Ask after each phase in which the GPU may have been used, and fail the report."""
        report = yield
        self._ran_here = True
        if call.excinfo is not None:
            self._errors.append(call.excinfo.value)
        if call.when == "setup" and call.excinfo is None:
            return report
        unfit = fitness.unfit(item.config)
        if unfit is None:
            self._ask(item, report)
        elif call.when == "setup":
            vars(report)[words.NAME] = {words.NOT_RUN: unfit.since}
        elif unfit.since == item.nodeid and call.when == "call" and not report.failed:
            # a part of the test (a subtest) was told of it already
            fail_report(item, report, f"{unfit.why} since a part of this test", "", words.SECTION)
        return report

    def _ask(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Ask; what is wrong fails the report."""
        self._driver.look()
        if report.when != "teardown" and self._is_capturing():
            return  # a fixture may hold a capture open for the test: it is asked after the teardown
        found = self._sickness(suspicious=report.failed)
        if found:
            self._blame(item, report, found)
        elif report.when == "teardown":
            kept = self._allocator.kept()
            if kept >= _NOTEWORTHY_BYTES:
                vars(report)[words.NAME] = {words.KEPT: kept}

    def _is_capturing(self) -> bool:
        return self._driver.is_capturing() or self._allocator.is_capturing()

    def _sickness(self, *, suspicious: bool) -> str:
        """Return what is wrong in one line, or ""."""
        if self._is_capturing():
            return words.OPEN_CAPTURE
        broken = self._driver.broken()
        if broken is not None:
            return str(broken)
        suspicious = suspicious or self._driver.refused_a_capture()
        return self._allocator.left_by_capture(suspicious=suspicious)

    def _blame(self, item: pytest.Item, report: pytest.TestReport, found: str) -> None:
        """Name the test as the first sick one, and say that its process may run no other."""
        recover = self._recover or self._isolated
        fitness.declare_unfit(
            item.config, item.nodeid, words.what_is_broken(found), recover=recover
        )
        asked, dump = core_dump.is_asked_for(), ""
        if asked:
            dump = core_dump.written_since(self._began)
        story = words.Story(
            found=found,
            phase=str(report.when),
            test=item.nodeid,
            last_healthy=self._last_healthy,
            pid=self._pid,
            isolated=self._isolated,
            recover=recover,
            log=self._driver.log(),
            dump=dump,
            dump_asked=asked,
        )
        fail_report(item, report, story.headline, story.text, words.SECTION)
        vars(report)[words.NAME] = {words.SICK: story.plain()}
        for properties in (
            item.user_properties,
            report.user_properties,
        ):  # those of later phases, too
            properties.append((words.NAME, f"first sick: {found}"))
        if report.when == "teardown" and pytest_internals.is_anything_set_up(item.session):
            # found only now, and nobody will come by to tear the rest down
            try:
                pytest_internals.tear_down(item.session, None)
            except Exception as error:
                report.sections.append((words.SECTION, f"the teardown of what was left: {error}"))
