"""What isolation has cost in a session: by method, and of the tests that paid most."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

_MOST_SHOWN = 25


class MethodCost(NamedTuple):
    """The isolated tests of one method, or those in the pytest process.

    Attributes:
        method: The method; "" of tests that had no process of their own.
        tests: How many tests it had.
        bodies: What their phases took, in seconds.
        processes: What their processes cost beyond that.
        median: The cost of a test's process in the middle.
        most: The highest.

    """

    method: str
    tests: int
    bodies: float
    processes: float
    median: float
    most: float


class Costs(NamedTuple):
    """What isolation has cost.

    Attributes:
        methods: By method, in the order in which they were first used; "" first, if there.
        dearest: The isolated tests whose processes cost most, the most expensive first.
        whys: How many tests each reason against a cheaper method concerns.

    """

    methods: tuple[MethodCost, ...]
    dearest: tuple[dict[str, Any], ...]
    whys: tuple[tuple[str, int], ...]

    @property
    def processes(self) -> float:
        """What all processes of tests have cost, in seconds; they may have run side by side."""
        return sum(each.processes for each in self.methods)

    @property
    def isolated(self) -> int:
        """How many tests had a process of their own."""
        return sum(each.tests for each in self.methods if each.method)


def costs_of(document: dict[str, Any]) -> Costs:
    """Return what isolation has cost in a session's document."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    whys: dict[str, int] = {}
    for test in document["tests"]:
        isolation = test["isolation"]
        by_method.setdefault("" if isolation is None else isolation["method"], []).append(test)
        if isolation is not None and isolation["why"]:
            whys[isolation["why"]] = whys.get(isolation["why"], 0) + 1
    methods = [_method_cost(name, tests) for name, tests in by_method.items()]
    isolated = [test for test in document["tests"] if test["isolation"] is not None]
    dearest = sorted(isolated, key=lambda test: -float(test["isolation"]["seconds"]))
    return Costs(
        tuple(sorted(methods, key=lambda each: bool(each.method))),
        tuple(dearest[:_MOST_SHOWN]),
        tuple(sorted(whys.items(), key=lambda each: -each[1])),
    )


def _method_cost(method: str, tests: list[dict[str, Any]]) -> MethodCost:
    costs = [float(test["isolation"]["seconds"]) for test in tests] if method else [0.0]
    return MethodCost(
        method,
        len(tests),
        sum(float(test["seconds"]) for test in tests),
        sum(costs),
        statistics.median(costs),
        max(costs),
    )
