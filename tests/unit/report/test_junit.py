"""The properties of JUnit's file: how a test was isolated, what it touched, and its errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_reports
from pytest_cudafork.report.junit import JunitProperties
from pytest_cudafork.settings import Level
from tests.support.checked_sessions import LedgerSession, report

CONFIG: Any = SimpleNamespace()


def test_a_test_has_what_it_did_in_its_last_report_alone(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    junit = JunitProperties(CONFIG, session.state)
    session.touch(3)
    session.touch(3)
    session.fork(5)
    session.ledger.append("told", culprit="x", at="y")
    call, last = report("call"), report(isolation="spawn")
    for each in (call, last):
        junit.pytest_runtest_logreport(each)
    at = f"{tmp_path}/test_a.py:3"
    assert call.user_properties == []
    assert last.user_properties == [
        ("cudafork_isolation", "spawn"),
        ("cudafork_touch", at),
        ("cudafork_error", "CudaForkError"),
        ("cudafork_culprit", at),
    ]
    again = report()
    junit.pytest_runtest_logreport(again)
    assert again.user_properties == [], "that was another run's"


@pytest.mark.parametrize("isolated", [True, False])
def test_a_touch_is_no_error_in_the_process_of_an_isolated_test(
    isolated: bool, tmp_path: Path
) -> None:
    session = LedgerSession(tmp_path, Level.TOUCH)
    junit = JunitProperties(CONFIG, session.state)
    session.touch(3)
    last = report(**({"isolation": "spawn"} if isolated else {}))
    junit.pytest_runtest_logreport(last)
    errors = [value for name, value in last.user_properties if name == "cudafork_error"]
    assert errors == ([] if isolated else ["CudaTouchError"])


def test_a_test_that_did_nothing_has_no_property(tmp_path: Path) -> None:
    junit = JunitProperties(CONFIG, LedgerSession(tmp_path).state)
    quiet = report()
    junit.pytest_runtest_logreport(quiet)
    assert quiet.user_properties == []


def test_the_suite_has_level_device_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = LedgerSession(tmp_path)
    junit = JunitProperties(CONFIG, session.state)
    session.touch(3)
    told: list[tuple[str, object]] = []
    xml = SimpleNamespace(add_global_property=lambda name, value: told.append((name, value)))
    monkeypatch.setattr(pytest_reports, "junit_xml", lambda config: xml)
    junit.pytest_sessionfinish()
    assert told == [
        ("cudafork_level", "fork"),
        ("cudafork_device", "absent"),
        ("cudafork_touches", 1),
    ]
    monkeypatch.setattr(pytest_reports, "junit_xml", lambda config: None)
    junit.pytest_sessionfinish()


def test_the_fork_of_a_test_adds_nothing(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    junit = JunitProperties(CONFIG, session.state)
    session.touch(3)
    junit._pid = 1
    last = report()
    junit.pytest_runtest_logreport(last)
    junit.pytest_sessionfinish()
    assert last.user_properties == []


def test_without_a_watch_there_is_nothing_to_read(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    session.state.watch = None
    with pytest.raises(ValueError, match="watch"):
        JunitProperties(CONFIG, session.state)
