"""In a worker on another host: sends what its ledger has, with the report of each test."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_cudafork.check.hooks import CheckHooks
from pytest_cudafork.check.watch import Watch
from pytest_cudafork.hosts.parcel import CARRIED, Clocks, Parcel
from pytest_cudafork.report.header import limits_of

_STAYS = frozenset(("baseline", "end"))
"""Records that the controller has of its own."""


class SendsHome:
    """The plugin object."""

    def __init__(self, config: pytest.Config, watch: Watch, check: CheckHooks, late: str) -> None:
        self._config = config
        self._observer = watch.observer
        self._check = check
        self._late = late
        self._clocks = Clocks.now()
        self._reader = watch.observer.ledger.reader()
        self._pid = os.getpid()

    def _parcel(self) -> Parcel:
        records = [each for each in self._reader.new() if each["k"] not in _STAYS]
        return Parcel.made(os.fspath(self._config.rootpath), self._clocks, records)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Let a report carry the records that are new."""
        if self._pid == os.getpid() and self._reader.behind():
            setattr(report, CARRIED, self._parcel().to_text())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Send what is left, and what is known to be missing."""
        records = self._observer.records()
        damage = list(self._check.lost(records))
        limits = [*limits_of(self._observer), *filter(None, [self._late])]
        parcel = self._parcel()._replace(damage=damage, limits=limits)
        self._reader.close()
        output: dict[str, Any] = self._config.workeroutput  # type: ignore[attr-defined]
        output[CARRIED] = parcel.to_text()
