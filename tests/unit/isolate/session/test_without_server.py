"""Tests of why there is no fork server: for which tests, and which one tries again."""

from __future__ import annotations

from pytest_cudafork.isolate.session.without_server import WithoutServer
from pytest_cudafork.process.protocol.server_messages import CannotFork

FOR_GOOD = CannotFork("", "start", "exited with status 1")


def test_where_there_is_one_each_test_has_it() -> None:
    without = WithoutServer()
    assert [without.for_next_test() for _ in range(3)] == [None] * 3


def test_what_holds_for_good_holds_for_every_test() -> None:
    without = WithoutServer()
    assert without.for_good(FOR_GOOD) is FOR_GOOD
    assert [without.for_next_test() for _ in range(100)] == [FOR_GOOD] * 100


def test_a_shortage_holds_for_more_tests_each_time() -> None:
    without = WithoutServer()
    pauses = []
    for _ in range(4):
        without.for_some_tests("no process is left", last=False)
        assert without.reason is not None
        assert without.reason.reason == "no process is left"
        pauses.append(0)
        while without.for_next_test() is not None:
            pauses[-1] += 1
        assert without.reason is None
    assert pauses == [0, 4, 16, 64]


def test_the_last_shortage_holds_for_good() -> None:
    without = WithoutServer()
    without.for_some_tests("no process is left", last=True)
    told = {without.for_next_test() for _ in range(1000)}
    assert [one and one.text for one in told] == ["no process is left"]


def test_one_that_could_not_be_started_is_tried_by_each_test() -> None:
    without = WithoutServer()
    for _ in range(3):
        without.for_this_test("no process is left")
        assert without.reason is not None
        assert without.for_next_test() is None
