"""Owns what a verdict means for a test: passed, failed, skipped, accepted, or an error. Pure.

It does not know how a test is run, nor in which words its outcome is told.
"""

from __future__ import annotations

import enum

from pytest_cudafork.imports.values.records import Verdict


class Outcome(enum.Enum):
    """What becomes of the test of one module."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ACCEPTED = "accepted"
    ERROR = "error"


def outcome_of(verdict: Verdict, *, strict: bool = False, accepted: bool = False) -> Outcome:
    """Return the outcome of a verdict.

    Args:
        verdict: What became of the import.
        strict: Whether a module must be importable.
        accepted: Whether the baseline holds the module.

    """
    if verdict.touched and accepted:
        return Outcome.ACCEPTED
    if verdict is Verdict.NOT_IMPORTABLE and not strict:
        return Outcome.SKIPPED
    return {Verdict.CLEAN: Outcome.PASSED, Verdict.NOT_OBSERVABLE: Outcome.ERROR}.get(
        verdict, Outcome.FAILED
    )
