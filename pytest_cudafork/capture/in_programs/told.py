"""What was found of the graphs that a program captured: read from its ledger, and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cudafork.counted import count_of
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.settings.devices import ABSENT

_HINT = "; the program was shown no GPU: add --device=phantom:sm_90 if it uses the device 'cuda'"


@dataclass(frozen=True)
class Captures:
    """What is known of the captures of a program and of what descends from it.

    Attributes:
        errors: the findings that are errors, as plain values.
        suspicions: those that may be meant so.
        not_judged: how many values could not be judged, by the reason.
        judged: how many values were looked at.
        elsewhere: whether another thread than the first has captured or replayed a graph, unseen.
        broken: why processes could not look at captures.
        captured: how many captures were looked at.
        replays: how many replays of their graphs.
        asked: the device that was seen where captures were to be looked at; "": they were not.

    """

    errors: tuple[Mapping[str, Any], ...] = ()
    suspicions: tuple[Mapping[str, Any], ...] = ()
    not_judged: tuple[tuple[str, int], ...] = ()
    judged: int = 0
    elsewhere: bool = False
    broken: tuple[str, ...] = ()
    captured: int = 0
    replays: int = 0
    asked: str = ""

    def error_lines(self) -> list[str]:
        """Tell the errors."""
        if not self.errors:
            return []
        lines = ["captured graphs:"]
        for each in self.errors:
            lines += [f"    {line}" for line in _finding(each, brief=False)]
        return lines

    def other_lines(self) -> list[str]:
        """Tell what is no error, what could not be judged, and how much was looked at."""
        lines = []
        if self.suspicions:
            lines.append("captured graphs, which may be meant so:")
        for each in self.suspicions:
            lines += [f"    {line}" for line in _finding(each, brief=True)]
        if self.not_judged:
            from pytest_cudafork.capture.in_tests.words import gaps

            lines += gaps(dict(self.not_judged), self.judged)
        if self.captured:
            captures = count_of(self.captured, "capture")
            replays = count_of(self.replays, "replay")
            lines.append(f"captured graphs looked at: {captures}, {replays}")
        elif self.asked and not self.broken:
            lines.append(f"captured graphs looked at: none{_HINT if self.asked == ABSENT else ''}")
        return lines

    def unseen(self) -> list[str]:
        """Say what was not looked at."""
        words = [f"captured graphs were not looked at: {why}" for why in self.broken]
        if self.elsewhere:
            words.append(
                "graphs that other threads captured or replayed than the one that imported torch: "
                "nobody looked at that"
            )
        return words

    def as_plain(self) -> dict[str, Any]:
        """Return it for other programs."""
        return {
            "errors": [dict(each) for each in self.errors],
            "suspicions": [dict(each) for each in self.suspicions],
            "captured": self.captured,
            "replays": self.replays,
            "judged": self.judged,
            "not_judged": dict(self.not_judged),
        }


def read_captures(records: Iterable[Record]) -> Captures:
    """Read the records; a finding of several processes is one."""
    found = [record.get("found") for record in records if record["k"] == "captures"]
    told = [each for each in found if isinstance(each, dict)]
    not_judged: Counter[str] = Counter()
    for each in told:
        gaps = each.get("not_judged")
        for why, count in gaps.items() if isinstance(gaps, dict) else ():
            not_judged[why] += _number(count)
    return Captures(
        _once(told, "errors"),
        _once(told, "suspicions"),
        tuple(not_judged.most_common()),
        sum(_number(each.get("judged", 0)) for each in told),
        any(each.get("elsewhere") for each in told),
        tuple(dict.fromkeys(str(each["broken"]) for each in told if each.get("broken"))),
        sum(_number(each.get("captured", 0)) for each in told),
        sum(_number(each.get("replays", 0)) for each in told),
        next((each["asked"] for each in told if isinstance(each.get("asked"), str)), ""),
    )


def _once(told: Sequence[Mapping[str, Any]], name: str) -> tuple[Mapping[str, Any], ...]:
    from pytest_cudafork.capture.in_tests.words import key_of

    every = [each for one in told for each in _list(one.get(name)) if _is_finding(each)]
    return tuple({key_of(each): each for each in every}.values())


def _is_finding(found: object) -> bool:
    """Whether it has the form of one: any process may have written into the ledger."""
    if not isinstance(found, dict):
        return False
    texts = all(isinstance(found.get(name), str) for name in ("kind", "what", "why", "todo"))
    lines = found.get("lines")
    return texts and isinstance(lines, list) and all(_is_place(each) for each in lines)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _is_place(line: object) -> bool:
    return isinstance(line, list) and len(line) == 2 and all(isinstance(one, str) for one in line)


def _finding(found: Mapping[str, Any], *, brief: bool) -> list[str]:
    from pytest_cudafork.capture.in_tests.words import finding_lines

    return finding_lines(found, brief=brief)
