"""What other plugins are told of the graphs that a test captured by itself."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.capture.in_tests.told import as_verdict
from pytest_cudafork.capture.story.verdicts import CheckedCapture

ERROR = {"kind": "stale-data", "what": "old", "why": "w", "todo": "t",
         "lines": [["seen", ""], ["computed at", "a.py:3"]]}  # fmt: skip
TOLD: dict[str, Any] = {
    "errors": [ERROR],
    "suspicions": [{**ERROR, "kind": "rng-frozen"}],
    "not_judged": {"an input is gone": 2},
    "backends": ["software"],
}


def test_errors_are_findings_and_suspicions_are_notes() -> None:
    made = as_verdict(TOLD, failed=True)
    assert (made.title, made.backend, made.verdict) == ("captured graphs", "software", "failed")
    (finding,) = made.findings
    assert (finding.check, finding.where, finding.why) == ("stale-data", "a.py:3", "w")
    assert made.notes == ("[rng-frozen] old (computed at a.py:3)",)
    assert made.not_checked == {"stale-data": "2 values: an input is gone"}
    assert {"stale-data", "rng-frozen"} <= set(made.checks)
    assert CheckedCapture.from_plain(made.to_plain()) == made


def test_what_was_found_counts_only_where_a_test_fails_for_it() -> None:
    made = as_verdict(TOLD, failed=False)
    assert (made.verdict, made.findings) == ("passed", ())
    assert as_verdict({"backends": ["cuda"]}, failed=False).not_checked == {}
