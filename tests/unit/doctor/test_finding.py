"""A finding as it is printed and as data."""

from __future__ import annotations

from pytest_cudafork.doctor import finding
from pytest_cudafork.doctor.finding import Finding, Level


def test_a_finding_is_told_with_its_consequence_and_its_fix() -> None:
    assert finding.problem("torch", "is broken", "nothing works", "mend it").lines() == [
        "problem: torch: is broken",
        "    so: nothing works",
        "    fix: mend it",
    ]
    assert finding.ok("torch", "2.13.0").lines() == ["ok: torch: 2.13.0"]
    assert finding.note("A", "is 1", "b").lines() == ["note: A: is 1", "    so: b"]


def test_control_sequences_of_what_others_wrote_are_not_sent_to_the_terminal() -> None:
    (first, *_) = finding.warning("A", "is '\x1b[31m'", "b", "c").lines()
    assert first == "warning: A: is '\\x1b[31m'"


def test_a_finding_as_data_has_texts_alone() -> None:
    assert Finding(Level.NOTE, "A", "b", "c", "d").to_plain() == {
        "level": "note",
        "subject": "A",
        "text": "b",
        "consequence": "c",
        "fix": "d",
    }
