"""What a scenario of pytest-bdd came to goes from process to process beside its report."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pytest

from pytest_cudafork.compat.plugins import bdd
from tests.unit.compat import require


class ReportContext(NamedTuple):
    """As that of pytest-bdd."""

    scenario: dict[str, Any]
    name: str


def _report() -> pytest.TestReport:
    return pytest.TestReport("it", ("", 0, ""), {}, "passed", None, "call")


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module like the one that keeps them."""
    made: Any = ModuleType("pytest_bdd.reporting")
    made.test_report_context_registry = WeakKeyDictionary()
    made.ReportContext = ReportContext
    monkeypatch.setitem(sys.modules, "pytest_bdd.reporting", made)
    return made


def test_what_is_packed_in_one_process_is_known_in_the_other(reporting: Any) -> None:
    here, there = _report(), _report()
    scenario = {"name": "it works", "steps": []}
    reporting.test_report_context_registry[here] = ReportContext(scenario, "test_it")
    packed = bdd.pack(here)
    assert packed == [scenario, "test_it"]
    bdd.enter(there, packed)
    assert reporting.test_report_context_registry[there] == ReportContext(scenario, "test_it")


def test_a_report_without_a_scenario_has_none(reporting: Any) -> None:
    assert bdd.pack(_report()) is None


def test_the_report_of_a_subtest_has_none_and_need_not_have_a_hash(reporting: Any) -> None:
    class Subtest(pytest.TestReport):
        """As that of pytest 9: a dataclass that is compared by its fields."""

        __hash__ = None  # type: ignore[assignment]

    report = Subtest("it", ("", 0, ""), {}, "passed", None, "call")
    assert bdd.pack(report) is None


def test_without_the_plugin_there_is_nothing_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pytest_bdd.reporting", raising=False)
    assert bdd.pack(_report()) is None
    bdd.enter(_report(), [{}, "test_it"])


def test_the_names_are_there() -> None:
    module = pytest.importorskip("pytest_bdd.reporting")
    use = "Cucumber files of isolated tests"
    require("pytest-bdd", module, "test_report_context_registry", use)
    made: Any = require("pytest-bdd", module, "ReportContext", use)
    context = made(scenario={}, name="it")
    assert (context.scenario, context.name) == ({}, "it")
