"""All correct programs that look suspicious: a check that alarms at one of them is wrong."""

from __future__ import annotations

from tests.specimens.graphs import correct, correct_kinds, correct_pairs, correct_tensors

__all__ = ["PROGRAMS"]

PROGRAMS = (
    *correct.PROGRAMS,
    *correct_pairs.PROGRAMS,
    *correct_kinds.PROGRAMS,
    *correct_tensors.PROGRAMS,
)
