"""Properties for pytest's JUnit file: of each test how it was isolated, and what it did with CUDA.

The properties of a test are added to its last report in the process that writes the file, so they
are in no report of another kind.
"""

from __future__ import annotations

import pytest

from pytest_cudafork.check.findings import expected_ids, find
from pytest_cudafork.check.session import CudaForkSession
from pytest_cudafork.compat import pytest_reports
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.observe.base.ledger import LedgerReader
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.observer import Observer

_KINDS = ("touch", "fork", "child", "caught")


class JunitProperties:
    """The plugin object.

    Args:
        config: The session's configuration.
        state: What the session holds for the plugin; it has a watch.

    """

    def __init__(self, config: pytest.Config, state: CudaForkSession) -> None:
        if state.watch is None:
            raise ValueError("without a watch there is no ledger to read")
        self._config = config
        self._level = state.settings.level
        self._observer: Observer = state.watch.observer
        self._pid = os.getpid()
        self._reader: LedgerReader = self._observer.ledger.reader()
        self._records: list[Record] = []
        self._of_test: dict[str, list[Record]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the properties of a test to its last report, before the file's plugin reads it."""
        is_last = report.when == "teardown" and not pytest_reports.is_of_subtest(report)
        if not is_last or self._pid != os.getpid():
            return
        self._read()
        method = getattr(report, "isolation", None)
        if method is not None:
            report.user_properties.append(("cudafork_isolation", method))
        records = self._of_test.pop(report.nodeid, [])
        for name, value in self._seen(records, isolated=method is not None):
            report.user_properties.append((name, value))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Add the properties of the whole suite."""
        if self._pid != os.getpid():
            return
        self._read()
        self._reader.close()
        xml = pytest_reports.junit_xml(self._config)
        if xml is None:
            return
        touches = sum(record["k"] == "touch" for record in self._records)
        xml.add_global_property("cudafork_level", self._level.value)
        xml.add_global_property("cudafork_device", self._observer.settings.device)
        xml.add_global_property("cudafork_touches", touches)
        for limit in self._observer.limits:
            xml.add_global_property("cudafork_not_observable", limit)

    def _read(self) -> None:
        for record in self._reader.new():
            if record["k"] in _KINDS:
                self._records.append(record)
                test = str(record.get("test", "")).rpartition(" (")[0]
                self._of_test.setdefault(test, []).append(record)

    def _seen(self, records: list[Record], *, isolated: bool) -> list[tuple[str, str]]:
        """Return what a test did, as properties; nothing of one that did nothing."""
        if not records:
            return []
        from pytest_cudafork.observe.story.stories import History
        from pytest_cudafork.observe.story.touch import Touch

        touches = [Touch.from_record(each) for each in records if each["k"] == "touch"]
        told = [("cudafork_touch", where) for where in dict.fromkeys(t.where for t in touches)]
        expected = expected_ids(records)
        found = find(records, self._level, isolated=isolated, expected=expected)
        if found:
            history = History(self._records)
            for each in found:
                told.append(("cudafork_error", each.error.__name__))
                told.append(("cudafork_culprit", each.culprit(history)))
        return [(name, value) for name, value in dict.fromkeys(told) if value]
