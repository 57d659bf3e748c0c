"""The rows of the page's timeline: one for each process and GPU, with what happened there when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pytest_cudafork.page.touches import test_of

_MOST_BARS = 1500
"""Of one row; where it has more, neighbours that nobody could tell apart are drawn as one."""
_MOST_LISTED = 300
"""Of the events of one row in words; the document has them all."""
_TICKS = 10


class Bar(NamedTuple):
    """Something that took time, or a moment.

    Attributes:
        kind: What it was: a kind of event.
        outcome: That of a test's phase, else "".
        left: Where it begins, in percent of the whole.
        width: How long it is, likewise; 0 of a moment.
        words: What it was, in words.

    """

    kind: str
    outcome: str
    left: float
    width: float
    words: str


class Row(NamedTuple):
    """A process, or a GPU.

    Attributes:
        name: What it is called.
        label: The same in short: of a process for one test that test.
        kind: What it is.
        number: Its process, or the GPU.
        depth: How many known processes it descends from.
        start: When the first thing of it was seen, in seconds.
        end: When the last was.
        bars: What is drawn.
        events: What happened, in order; at most as many as can be read.
        more: How many events there are beyond these.

    """

    name: str
    label: str
    kind: str
    number: int | str
    depth: int
    start: float
    end: float
    bars: tuple[Bar, ...]
    events: tuple[dict[str, Any], ...]
    more: int


class Timeline(NamedTuple):
    """All rows, and how long the whole is in seconds."""

    rows: tuple[Row, ...]
    seconds: float


def timeline_of(document: dict[str, Any]) -> Timeline:
    """Return the timeline of a session's document."""
    told = document["timeline"]
    ends = [float(each["end"]) for each in told["processes"]]
    ends += [float(each["start"]) + float(each["seconds"]) for each in told["events"]]
    whole = max([*ends, 1e-6])
    by_process: dict[int, list[dict[str, Any]]] = {}
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for event in told["events"]:
        if event["process"] is None:
            by_gpu.setdefault(event["details"].get("gpu", "?"), []).append(event)
        else:
            by_process.setdefault(event["process"], []).append(event)
    rows = [
        _row(process, depth, by_process.get(process["process"], []), whole)
        for process, depth in _in_order(told["processes"])
    ]
    for gpu, events in sorted(by_gpu.items()):
        start = min(event["start"] for event in events)
        end = max(event["start"] + event["seconds"] for event in events)
        about = {"name": f"GPU {gpu}", "kind": "gpu", "process": gpu, "start": start, "end": end}
        rows.append(_row(about, 0, events, whole))
    return Timeline(tuple(rows), whole)


def _in_order(processes: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Return processes, each before those that it has started, with how deep they are."""
    known = {each["process"] for each in processes}
    children: dict[int | None, list[dict[str, Any]]] = {}
    for each in processes:
        parent = each["parent"] if each["parent"] in known else None
        children.setdefault(parent, []).append(each)
    seen: set[int] = set()
    # A number may be used again by a later process, so that one may seem to descend from itself.
    waiting = [(each, 0) for each in [*reversed(processes), *reversed(children.get(None, []))]]
    while waiting:
        process, depth = waiting.pop()
        if process["process"] in seen:
            continue
        seen.add(process["process"])
        yield process, depth
        waiting += [(each, depth + 1) for each in reversed(children.get(process["process"], []))]


def _row(about: dict[str, Any], depth: int, events: list[dict[str, Any]], whole: float) -> Row:
    return Row(
        name=about["name"],
        label=_label(about, events),
        kind=about["kind"],
        number=about["process"],
        depth=depth,
        start=float(about["start"]),
        end=float(about["end"]),
        bars=tuple(_joined([_bar(event, whole) for event in events])),
        events=tuple(events[:_MOST_LISTED]),
        more=max(0, len(events) - _MOST_LISTED),
    )


def _label(about: dict[str, Any], events: list[dict[str, Any]]) -> str:
    # What became of a test whose process died is told by the process that had started it.
    own = events if about["kind"] == "isolated" else []
    tests = {test_of(event["name"]) for event in own if event["kind"] == "isolated test"}
    return tests.pop() if len(tests) == 1 else str(about["name"])


def _bar(event: dict[str, Any], whole: float) -> Bar:
    left = 100.0 * float(event["start"]) / whole
    width = 100.0 * float(event["seconds"]) / whole
    outcome = event["details"].get("outcome", "")
    said = f" ({outcome})" if outcome else ""
    return Bar(event["kind"], outcome, left, width, f"{event['kind']}: {event['name']}{said}")


def _joined(bars: list[Bar]) -> Iterable[Bar]:
    """Return the bars; of very many, alike ones that nearly meet are one."""
    if len(bars) <= _MOST_BARS:
        return bars
    gap = 100.0 / _MOST_BARS
    joined: list[Bar] = []
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for bar in bars:
        index, count = last.get(key := (bar.kind, bar.outcome), (-1, 0))
        before = joined[index] if count else bar
        if count and bar.left + bar.width - before.left <= gap:
            end = max(before.left + before.width, bar.left + bar.width)
            words = f"{bar.kind}: {count + 1} of them{f' ({bar.outcome})' if bar.outcome else ''}"
            joined[index] = before._replace(width=end - before.left, words=words)
            last[key] = (index, count + 1)
        else:
            joined.append(bar)
            last[key] = (len(joined) - 1, 1)
    return joined


def ticks_of(seconds: float) -> list[tuple[float, float]]:
    """Return round moments within a time, in seconds and in percent of it."""
    step = 10.0**-6
    factors = (2.0, 2.5, 2.0)  # 1, 2, 5, 10
    at = 0
    while seconds / step > _TICKS:
        step *= factors[at % 3]
        at += 1
    return [
        (round(number * step, 6), 100.0 * number * step / seconds)
        for number in range(int(seconds / step) + 1)
    ]
