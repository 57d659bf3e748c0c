"""The words of what was found of captures: a failed test, and the lines of the last section."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_cudafork.capture.interface.check_names import CHECK_FAILED
from pytest_cudafork.capture.interface.lines import shown
from pytest_cudafork.capture.story.findings import place_lines, reason_lines, wrapped
from pytest_cudafork.counted import count_of

SECTION = "captured graphs"
_MOST_REASONS = 3

_SILENCE = (
    "These checks are --cuda-fork-captures. '# captures: ignore' at the end of one of the lines "
    "above silences a finding, @pytest.mark.check_captures(False) all of a test."
)


def key_of(found: Mapping[str, Any]) -> str:
    """Return what two findings have in common that are one: the check and what happened where."""
    return json.dumps([found["kind"], found["lines"]])


def headline(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for the short summary."""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"[{errors[0]['kind']}] {errors[0]['what']}{more}"


def failure(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return what is shown of a test that fails for these findings."""
    count = count_of(len(errors), "finding")
    lines = [f"{count} in what this test captured and replayed"]
    told: set[tuple[str, str]] = set()
    for each in errors:
        reasons = str(each["why"]), str(each["todo"])
        lines += ["", *finding_lines(each, brief=reasons in told)]
        told.add(reasons)
    return "\n".join([*lines, "", *wrapped(_SILENCE, "", "")])


def suspicion(found: Mapping[str, Any], tests: Sequence[str]) -> list[str]:
    """Return the lines of a suspicion in the last section, with the tests that had it."""
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    return [*finding_lines(found, brief=True), f"    seen in {tests[0]}{more}"]


def gaps(
    not_judged: Mapping[str, int], judged: int, *, full: bool = False, rest: str = ""
) -> list[str]:
    """Return the lines on what could not be judged, the most frequent reasons first.

    Args:
        not_judged: How many could not, by the reason.
        judged: How many were looked at, these among them.
        full: Whether to show all reasons.
        rest: Where those are shown that are left out.

    """
    values = {why: n for why, n in not_judged.items() if not why.startswith(CHECK_FAILED)}
    failed = {
        why.removeprefix(CHECK_FAILED): n for why, n in not_judged.items() if why not in values
    }
    lines = []
    if values:
        lines.append(
            f"not judged: {sum(values.values())} of {judged} values that graphs read and that "
            "lines before their capture computed"
        )
        lines += _reasons(values, full, rest)
    if failed:
        times = count_of(sum(failed.values()), "time")
        lines.append(f"not judged: what checks would have found that failed themselves, {times}")
        lines += _reasons(failed, full, rest)
    return lines


def _reasons(counts: Mapping[str, int], full: bool, rest: str) -> list[str]:
    reasons = sorted(counts, key=lambda why: -counts[why])
    shown_here = reasons if full else reasons[:_MOST_REASONS]
    left = len(reasons) - len(shown_here)
    return [
        *(f"    {why}" for why in shown_here),
        *([f"    and {left} more{rest}"] if left else []),
    ]


def finding_lines(found: Mapping[str, Any], *, brief: bool) -> list[str]:
    """Return the lines of one finding; ``brief`` leaves out why it matters and what to do."""
    text = wrapped(f"[{found['kind']}] {found['what']}", "", "    ")
    text += _places(found["lines"])
    return text if brief else text + reason_lines(str(found["why"]), str(found["todo"]))


def _places(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return what happened where, each place with its source."""
    text = []
    for words, where in lines:
        text += place_lines(f"{words} {shown(where) or 'no line of user code'}", where)
    return text
