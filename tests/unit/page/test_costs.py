"""What isolation has cost, by method and by test."""

from __future__ import annotations

import pytest

from pytest_cudafork.page.costs import costs_of
from tests.support.session_documents import a_test, document


def test_costs_are_summed_by_method_and_tests_of_the_session_come_first() -> None:
    ways = {10: "fork", 0: None, 30: "fork", 5: "spawn"}
    tests = [a_test(number, method=way) for number, way in ways.items()]
    costs = costs_of(document(tests=tests))
    assert [(each.method, each.tests) for each in costs.methods] == [
        ("", 1),
        ("fork", 2),
        ("spawn", 1),
    ]
    fork = costs.methods[1]
    assert fork.processes == pytest.approx(0.051 + 0.053)
    assert fork.median == pytest.approx(0.052)
    assert fork.most == pytest.approx(0.053)
    assert fork.bodies == pytest.approx(0.04)
    assert costs.isolated == 3
    assert costs.processes == pytest.approx(0.051 + 0.053 + 0.0505)
    assert costs.methods[0].processes == 0


def test_the_dearest_come_first_and_are_not_more_than_can_be_read() -> None:
    tests = [a_test(number, method="fork") for number in range(40)]
    costs = costs_of(document(tests=tests))
    assert [each["test"] for each in costs.dearest] == [
        f"tests/test_it.py::test_number[{number}]" for number in range(39, 14, -1)
    ]
    assert costs.whys == (("not fork: 2 threads", 40),)


def test_a_session_without_isolated_tests_has_cost_nothing() -> None:
    costs = costs_of(document())
    assert (costs.isolated, costs.processes, costs.dearest, costs.whys) == (0, 0, (), ())
