"""A plain session before the faults: a way that gets it wrong would get every fault wrong, too.

Its tests pass, fail and print. What it leaves behind is not asked here: that is a promise, which
counts with each fault.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fault_cases import Fault
from fault_sessions import PROMISES, Seen, judge, run

PLAIN = (
    Fault("passes", "pass\n", outcome="passed"),
    Fault("fails", "assert 1 == 2\n"),
    Fault("prints", 'print("and more")\n', outcome="passed"),
)
"""What the tests of the plain session do; each has a test before it and one after it."""
ASKED = ("outcome", "others", "output", "time")
"""The promises that a plain session must keep."""


def control(method: str, xdist: bool, folder: Path) -> str:
    """Run the plain session in one way; return what is wrong with it, "" for nothing."""
    own = Path(tempfile.mkdtemp(dir=folder))
    return complaint(method, run(PLAIN, method, xdist, own)).replace(f"{own}/", "")


def complaint(method: str, seen: Seen) -> str:
    """Return what is wrong with a plain session; "" for nothing."""
    for each in PLAIN:
        kept = dict(zip(PROMISES, judge(each, method, seen), strict=True))
        if lost := [name for name in ASKED if not kept[name]]:
            said = _first_words(seen)
            wrong = f"of one that {each.name} it gets wrong: {', '.join(lost)}"
            return f"cannot run a plain test here: {wrong}{said and f' ({said})'}"
    return ""


def _first_words(seen: Seen) -> str:
    """Return the first line of a test that ended as it should not; "" if none says one."""
    for each in PLAIN:
        for case in seen.of(each):
            right = {each.outcome} if case.name == "test_fault" else set()
            if case.said - right and case.words:
                return case.words.splitlines()[0]
    return ""
