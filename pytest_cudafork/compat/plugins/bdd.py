"""What the plugin uses of pytest-bdd; only its decorators, options and hooks are public.

What a scenario came to stands beside the report of its test, in a dictionary of the process that
made the report. The Gherkin output and the Cucumber file are made of that in the pytest process.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pytest_cudafork.compat.pytest_reports import is_of_subtest

Packed = list[Any]


def _contexts() -> Any:
    """Return the dictionary (``pytest_bdd.reporting.test_report_context_registry``), or None."""
    reporting = sys.modules.get("pytest_bdd.reporting")
    return getattr(reporting, "test_report_context_registry", None)


def pack(report: pytest.TestReport) -> Packed | None:
    """Return what its scenario came to as plain data for ``enter``; None if there is none."""
    contexts = _contexts()
    if contexts is None or is_of_subtest(report):  # which pytest-bdd makes none of, and has no hash
        return None
    context = contexts.get(report)
    return None if context is None else [context.scenario, context.name]


def enter(report: pytest.TestReport, packed: Packed) -> None:
    """Let this process know it of a report that comes from another one.

    Raises:
        ValueError, TypeError: It was not packed by ``pack``.

    """
    scenario, name = packed
    contexts = _contexts()
    if contexts is not None:
        made: Any = sys.modules["pytest_bdd.reporting"].ReportContext
        contexts[report] = made(scenario=scenario, name=name)
