"""The controller takes what workers send into its ledger, and says what did not come."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.check.hooks import host_words
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.hosts import parcel as parcels
from pytest_cudafork.hosts.parcel import CARRIED, Clocks, Parcel
from pytest_cudafork.hosts.receiving import TakesHome
from pytest_cudafork.hosts.told import KEY
from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.base.other_hosts import moved_number
from pytest_cudafork.report import trace

TOUCH = {
    "k": "touch", "id": "5-1-1", "pid": 5, "t": 1, "owner": "4", "test": "", "phase": "start",
}  # fmt: skip


class Observer:
    """What is needed of the session's observer."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def note_host(self, **fields: object) -> None:
        """Write as the real one does."""
        self.ledger.append("host", **fields)


class Config:
    """What is needed of the controller's configuration."""

    rootpath = Path("/home")
    option = SimpleNamespace()

    def __init__(self, watch: object) -> None:
        self.stash = {SESSION: SimpleNamespace(watch=watch)}

    def getini(self, name: str) -> str:
        """No ini file."""
        return ""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(str(tmp_path / "ledger.jsonl"))
    made.create()
    return made


def receiver(ledger: Ledger | None) -> TakesHome:
    terms = SimpleNamespace(terms=None)
    watch = ledger and SimpleNamespace(observer=Observer(ledger), acceptance=terms)
    return TakesHome(cast(pytest.Config, Config(watch)))


def node(name: str, *, popen: bool = False, via: str | None = None, **fields: Any) -> Any:
    spec = SimpleNamespace(popen=popen, via=via)
    gateway = SimpleNamespace(id=name, spec=spec)
    return SimpleNamespace(gateway=gateway, workerinput={}, **fields)


def report(of: Any, **fields: Any) -> Any:
    return SimpleNamespace(node=of, **fields)


def records(ledger: Ledger) -> list[dict[str, Any]]:
    return ledger.reader().new()


def test_workers_elsewhere_are_told_and_local_ones_are_not(ledger: Ledger) -> None:
    takes = receiver(ledger)
    nodes = {
        "gw0": node("gw0", popen=True),
        "gw1": node("gw1", popen=True, via="master"),
        "gw2": node("gw2"),
    }
    for each in nodes.values():
        takes.pytest_configure_node(each)
    assert [name for name, each in nodes.items() if KEY in each.workerinput] == ["gw1", "gw2"]


def test_records_come_with_reports_and_the_rest_with_the_end(ledger: Ledger) -> None:
    takes, here, there = receiver(ledger), node("gw0", popen=True), node("gw1")
    takes.pytest_configure_node(here)
    takes.pytest_configure_node(there)
    parcel = Parcel.made("/there", Clocks.now(), [TOUCH])
    told = report(
        there, **{CARRIED: parcel.to_text(), trace.CARRIED: {"pid": 5, "ppid": 4, "gpus": "0,1"}}
    )
    takes.pytest_runtest_logreport(told)
    assert not hasattr(told, CARRIED)
    assert getattr(told, trace.CARRIED) == {
        "pid": moved_number(5, 1), "ppid": moved_number(4, 1), "gpus": "0 of host 1,1 of host 1"
    }  # fmt: skip
    local = {"pid": 5, "gpus": "0"}
    takes.pytest_runtest_logreport(report(here, **{trace.CARRIED: local}))
    assert local == {"pid": 5, "gpus": "0"}
    takes.pytest_runtest_logreport(cast(Any, SimpleNamespace()))  # one that was made here
    last = Parcel.made("/there", Clocks.now(), [{**TOUCH, "id": "5-1-2"}])._replace(
        damage=["d"], limits=["l"]
    )
    there.workeroutput = {CARRIED: last.to_text()}
    takes.pytest_testnodedown(there, None)
    takes.pytest_testnodedown(here, None)
    found = records(ledger)
    assert [each["id"] for each in found[:2]] == ["1:5-1-1", "1:5-1-2"]
    assert host_words(found, "damage") == (f"host 1 (gw1 on {last.host}): d",)
    assert host_words(found, "limits") == (f"host 1 (gw1 on {last.host}): l",)


def test_records_of_a_worker_keep_their_order_whatever_becomes_of_the_time_of_the_day(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes, there, clocks = receiver(ledger), node("gw1"), Clocks(1000, 40)
    takes.pytest_configure_node(there)
    for seconds, moment in ((0, 50), (3600, 60)):
        away = SimpleNamespace(time_ns=lambda: seconds, monotonic_ns=lambda: 5)  # noqa: B023
        monkeypatch.setattr(parcels, "time", away)
        parcel = Parcel.made("/there", clocks, [{**TOUCH, "t": moment}])
        takes.pytest_runtest_logreport(report(there, **{CARRIED: parcel.to_text()}))
    first, second = (int(each["t"]) for each in records(ledger)[:2])
    assert second - first == 10


def test_what_did_not_come_home_is_damage(ledger: Ledger) -> None:
    takes, there = receiver(ledger), node("gw1")
    takes.pytest_configure_node(there)
    takes.pytest_testnodedown(there, "Not properly terminated")
    takes.pytest_testnodedown(there, "once more")
    (words,) = host_words(records(ledger), "damage")
    assert words == "host 1 (gw1): what it saw last did not come home: Not properly terminated"


def test_a_worker_that_takes_the_place_of_a_lost_one_has_a_number_of_its_own(
    ledger: Ledger,
) -> None:
    takes, nodes = receiver(ledger), [node(f"gw{number}") for number in range(3)]
    for there in nodes[:2]:
        takes.pytest_configure_node(there)
    takes.pytest_testnodedown(nodes[0], "crashed")
    takes.pytest_configure_node(nodes[2])
    for there in nodes[1:]:
        parcel = Parcel.made("/there", Clocks.now(), [TOUCH])
        takes.pytest_runtest_logreport(report(there, **{CARRIED: parcel.to_text()}))
    found = [each["pid"] for each in records(ledger) if each["k"] == "touch"]
    assert found == [moved_number(5, 2), moved_number(5, 3)]


@pytest.mark.parametrize("output", [{}, {CARRIED: "{}"}, {CARRIED: 5}])
def test_a_worker_that_says_nothing_was_not_watched(ledger: Ledger, output: Any) -> None:
    takes, there = receiver(ledger), node("gw1", workeroutput=output)
    takes.pytest_configure_node(there)
    takes.pytest_testnodedown(there, None)
    (words,) = host_words(records(ledger), "limits")
    assert words.startswith("host 1 (gw1): nothing was watched there")


def test_without_the_check_nothing_is_kept() -> None:
    takes, there = receiver(None), node("gw1")
    takes.pytest_configure_node(there)
    takes.pytest_runtest_logreport(
        report(there, **{CARRIED: Parcel.made("/there", Clocks.now(), [TOUCH]).to_text()})
    )
    takes.pytest_testnodedown(there, "gone")
