"""From facts to a level: which stale values are an error, and which only look like one.

That a graph reads what a line computed before, and that the line would now compute something else,
can be told. Whether it is meant to be so cannot. What is an error here accused the fewest correct
programs of all rules that were tried; all else is a suspicion.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_cudafork.capture.judge.findings import Level


class Facts(NamedTuple):
    """What is known of one stale value.

    Attributes:
        computes: it follows from other values, it is no copy of one.
        refreshed: its memory was written again since the capture, by another line than that of the
            value, or by the same one.
        ambiguous: its inputs lie in memory that other lines use, too, and with what they were then
            it would be the same.
        whole: whole or truth numbers among its inputs have changed.
        heavy: a multiplication of matrices or its like lies between.
        ran_again: its line ran again since, on the changed input, and wrote elsewhere.
        harmless: the graph gives the same results with what it would be now.

    """

    computes: bool
    refreshed: bool
    ambiguous: bool
    whole: bool
    heavy: bool
    ran_again: bool
    harmless: bool


def level_of(facts: Facts) -> Level | None:
    """Return what becomes of a stale value with these facts; None: nothing."""
    if facts.harmless:
        return None
    sure = facts.computes and not facts.refreshed and not facts.ambiguous
    meant_to_change = (facts.whole and not facts.heavy) or facts.ran_again
    return Level.ERROR if sure and meant_to_change else Level.SUSPICION
