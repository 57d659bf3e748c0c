"""Judges what a session showed by what it should show, and counts the outcomes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from demo.cases import INSTALLED, Case, Expect, Library
from demo.session import TIME_LIMIT, Seen, version_of


@dataclass(frozen=True)
class Result:
    """A session's outcome; ``difference`` says what is not as expected, "" where all is."""

    case: Case
    seen: Seen
    difference: str

    @property
    def differs(self) -> bool:
        """Whether it came out otherwise than expected."""
        return bool(self.difference)

    @property
    def counts(self) -> bool:
        """Whether anything was expected of it here."""
        return not self.seen.missing and expected(self.case) is not Expect.ANYTHING


def expected(case: Case) -> Expect:
    """Return what the case should show with the releases that are installed here."""
    return Expect.ANYTHING if other_release(case.needs) else case.expect


def other_release(needs: Sequence[Library]) -> str:
    """Say which library is not of the release that is known to touch; "" if there is none."""
    for library in needs:
        installed = version_of(library.distribution)
        if library.release and installed != library.release:
            return (
                f"{library.distribution} {library.release} touches CUDA when imported; "
                f"here is {installed or 'a release that does not say its number'}"
            )
    return ""


def verdict_of(seen: Seen) -> str:
    """Return the session's outcome in two words or less."""
    if seen.missing:
        return "not run"
    if seen.poisoned:
        return "child poisoned"
    if seen.refused:
        return "fork refused"
    if seen.places:
        return "touches"
    if seen.limits:
        return "not observable"
    if seen.status is None:
        return "no end"
    if seen.status:
        return "failed"
    return "passes" if seen.touches else "clean"


def judge(case: Case, seen: Seen) -> str:
    """Return what is not as expected, in words; "" when all is, or nothing was expected."""
    expect = expected(case)
    verdict = verdict_of(seen)
    if verdict == "not run":
        return ""
    if verdict == "no end":
        return f"no end within {TIME_LIMIT} s"
    if verdict == "failed":
        return f"failed (exit status {seen.status}) without a touch"
    if expect is Expect.NAMED:
        return _named(case, seen)
    if expect is Expect.CLEAN and verdict != "clean":
        return f"expected to be clean, is: {verdict}"
    if expect is Expect.SILENT and (verdict not in ("passes", "clean") or seen.status):
        return f"expected to pass, is: {verdict}"
    return ""


def _named(case: Case, seen: Seen) -> str:
    named = [place for place in seen.places if re.search(case.culprit, place.where)]
    if not named:
        others = ", ".join(place.where for place in seen.places) or verdict_of(seen)
        return f"expected to name {case.culprit!r}, has: {others}"
    if not seen.status:
        return "the culprit is in the ledger, but the session passed"
    if case.section is not INSTALLED and len(seen.places) > len(named):
        # The bugs are ours, so we know that nothing else is to blame. Libraries import libraries.
        others = ", ".join(place.where for place in seen.places if place not in named)
        return f"also blames {others}"
    return ""


def summary(results: Sequence[Result]) -> str:
    """Return the verdict over all sessions in one line."""
    parts = []
    for words, installed, expect in (
        ("bugs", False, Expect.NAMED),
        ("repairs", False, Expect.SILENT),
        ("libraries", True, Expect.NAMED),
        ("clean imports", True, Expect.CLEAN),
    ):
        group = [result for result in results if _belongs(result, installed, expect)]
        if group:
            parts.append(f"{sum(not result.differs for result in group)}/{len(group)} {words}")
    missing = sum(bool(result.seen.missing) for result in results)
    free = sum(not result.counts for result in results) - missing
    if free:
        parts.append(f"{free} either way")
    if missing:
        parts.append(f"{missing} not run")
    differing = sum(result.differs for result in results)
    return f"{f'{differing} NOT AS EXPECTED' if differing else 'as expected'}: {', '.join(parts)}"


def _belongs(result: Result, installed: bool, expect: Expect) -> bool:
    case = result.case
    return result.counts and (case.section is INSTALLED) is installed and case.expect is expect
