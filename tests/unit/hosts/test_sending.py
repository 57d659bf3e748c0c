"""A worker on another host sends its new records with reports, and the rest at its end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.hosts import parcel as parcels
from pytest_cudafork.hosts.parcel import CARRIED, Parcel
from pytest_cudafork.hosts.sending import SendsHome
from pytest_cudafork.observe.base.ledger import Ledger


class Worker:
    """A worker with a ledger."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(str(folder / "ledger.jsonl"))
        self.ledger.create()
        config: Any = SimpleNamespace(rootpath=folder, workeroutput={})
        self.config = config
        witnesses = SimpleNamespace(limits=("a witness is missing",))
        observer = SimpleNamespace(
            ledger=self.ledger, witnesses=witnesses, early=False, records=list
        )
        watch: Any = SimpleNamespace(observer=observer)
        check: Any = SimpleNamespace(lost=lambda records: ("a line is cut short",))
        self.sends = SendsHome(self.config, watch, check, "late")

    def report(self) -> Any:
        """Make a report, and let it carry what is new."""
        made: Any = SimpleNamespace()
        self.sends.pytest_runtest_logreport(made)
        return made


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def kinds(text: str) -> list[str]:
    return [record["k"] for record in Parcel.from_text(text).records]


def test_reports_carry_what_is_new(worker: Worker, tmp_path: Path) -> None:
    for kind in ("baseline", "touch", "fork", "end"):
        worker.ledger.append(kind)
    first = worker.report()
    assert kinds(getattr(first, CARRIED)) == ["touch", "fork"]
    assert Parcel.from_text(getattr(first, CARRIED)).root == str(tmp_path)
    assert not hasattr(worker.report(), CARRIED), "nothing is new"


def test_all_parcels_have_the_clocks_of_the_beginning(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the day is set meanwhile, and the process may have to wait between two looks."""
    found = []
    for seconds in (0, 3600):
        away = SimpleNamespace(time_ns=lambda: seconds, monotonic_ns=lambda: 5)  # noqa: B023
        monkeypatch.setattr(parcels, "time", away)
        worker.ledger.append("touch")
        found.append(Parcel.from_text(getattr(worker.report(), CARRIED)))
    first, second = found
    assert (first.wall_ns, first.clock_ns) == (second.wall_ns, second.clock_ns)


def test_the_end_carries_the_rest_and_what_is_missing(worker: Worker) -> None:
    worker.ledger.append("touch")
    worker.sends.pytest_sessionfinish()
    parcel = Parcel.from_text(worker.config.workeroutput[CARRIED])
    assert [record["k"] for record in parcel.records] == ["touch"]
    assert parcel.damage == ["a line is cut short"]
    assert parcel.limits == ["a witness is missing", "late"]


def test_the_fork_of_a_worker_sends_nothing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ledger.append("touch")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not hasattr(worker.report(), CARRIED)
