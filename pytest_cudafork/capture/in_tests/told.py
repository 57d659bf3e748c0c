"""What was found of the captures of one phase of a test, as other plugins are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_cudafork.capture.in_tests.words import SECTION
from pytest_cudafork.capture.interface.backend import CaptureFinding
from pytest_cudafork.capture.interface.check_names import GRAPH_CHECKS
from pytest_cudafork.capture.story.verdicts import FAILED, PASSED, CheckedCapture


def as_verdict(told: Mapping[str, Any], *, failed: bool) -> CheckedCapture:
    """Return it as a verdict on all graphs that the phase captured and replayed.

    Args:
        told: What the report carries.
        failed: Whether the report is one of a failure: a test that expects a replay to raise
            passes, and what was found of that replay counts for nothing.

    """
    errors = tuple(_finding(each) for each in told.get("errors", ()) if failed)
    gaps = [f"{count} values: {why}" for why, count in told.get("not_judged", {}).items()]
    return CheckedCapture(
        title=SECTION,
        backend=", ".join(told.get("backends", ())),
        verdict=FAILED if errors else PASSED,
        checks=GRAPH_CHECKS,
        not_checked={"stale-data": "; ".join(gaps)} if gaps else {},
        notes=tuple(_line(each) for each in told.get("suspicions", ())),
        findings=errors,
    )


def _finding(found: Mapping[str, Any]) -> CaptureFinding:
    lines = found["lines"]
    return CaptureFinding(
        check=found["kind"],
        what=found["what"],
        where=next((where for _, where in lines if where), ""),
        why=found["why"],
        todo=found["todo"],
    )


def _line(found: Mapping[str, Any]) -> str:
    lines = ", ".join(f"{words} {where}" for words, where in found["lines"] if where)
    return f"[{found['kind']}] {found['what']} ({lines})"
