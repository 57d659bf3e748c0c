"""Tests of phases that have passed and are told with the end of their test."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_cudafork.isolate.passed_phases import (
    PassedPhases,
    expected_sign,
    left_of,
    reports_of,
    sign_of,
)


def report(item: pytest.Item, when: Any, start: float = 1.5) -> pytest.TestReport:
    """A report of a phase that has passed."""
    keywords: Any = dict.fromkeys(item.keywords, 1)
    times: Any = {"duration": 0.5, "start": start, "stop": start + 0.5}
    return pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, when, **times)


@pytest.fixture
def item(pytester: pytest.Pytester) -> pytest.Item:
    """A test."""
    return pytester.getitem("import pytest\n@pytest.mark.slow\ndef test_it(): pass", "test_it")


def test_reports_are_as_they_were_made_in_the_other_process(item: pytest.Item) -> None:
    held = PassedPhases()
    held.begin()
    made = [report(item, "setup"), report(item, "call", 2.0), report(item, "teardown", 2.5)]
    for one in made:
        held.hold(one)
    for _ in range(2):  # with what is kept of the test, and without
        assert [vars(one) for one in reports_of(item, held.held)] == [vars(one) for one in made]
        expected_sign(item)
    keywords = [one.keywords for one in reports_of(item, held.held)]
    assert keywords[0] is not keywords[1]
    os.close(held.fd)


def test_a_sign_differs_where_a_report_says_something_else(item: pytest.Item) -> None:
    sign = expected_sign(item)
    made = report(item, "call")
    assert sign_of(made.location, made.keywords) == sign
    path, line, name = made.location
    assert sign_of((path, line, name + "\udc80"), made.keywords) != sign
    assert sign_of((path, 99, name), made.keywords) != sign
    assert sign_of(made.location, {**made.keywords, "more": 1}) != sign


@pytest.mark.parametrize("data", [b"x", b"\x03" + bytes(24)], ids=["length", "phase"])
def test_what_is_no_phase_is_refused(item: pytest.Item, data: bytes) -> None:
    with pytest.raises(ValueError, match="no phase"):
        reports_of(item, data)


def test_what_was_not_told_of_the_test_that_ran_last_is_found(item: pytest.Item) -> None:
    held = PassedPhases()
    held.begin()
    held.hold(report(item, "setup"))
    assert left_of(held.fd, 1) == held.held != b""
    assert left_of(held.fd, 2) == b""
    held.drop()
    assert left_of(held.fd, 1) == held.held == b""
    held.begin()
    for when in ("setup", "call", "teardown", "teardown"):  # no plugin reports a phase twice
        held.hold(report(item, when))
    assert [one.when for one in reports_of(item, left_of(held.fd, 2))] == [
        *("setup", "call", "teardown")
    ]
    assert left_of(held.fd, 1) == b""
    os.ftruncate(held.fd, 3)
    assert left_of(held.fd, 2) == b""
    os.close(held.fd)
    assert left_of(held.fd, 2) == b""
