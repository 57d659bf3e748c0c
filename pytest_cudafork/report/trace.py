"""A session as a trace: what each process did when, in the Trace Event format.

Perfetto, chrome://tracing and others draw it, one row a process. Times are microseconds since the
session began; the ledger's clock and that of pytest's reports are brought together by a look at
both.

Perfetto draws less than the format allows: numbers of processes and threads have 32 bits, 0 is the
kernel's, an arrow is a number and begins and ends within a span of its row, and spans of a row lie
within each other or apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from pytest_cudafork._version import version
from pytest_cudafork.compat import pytest_reports
from pytest_cudafork.observe.base.other_hosts import process_words
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.touch import Touch, frames_from
from pytest_cudafork.observe.story.words import headline, place_of

CARRIED = "_cudafork_process"
"""The attribute of a report that says in which process it was made, and with which GPUs."""
_MOST_PROCESSES = 1 << 22
"""Linux has no process with a greater number."""
_GPUS = _MOST_PROCESSES + 1
"""The row of the GPUs, which is no process."""
_FIRST_ELSEWHERE = _GPUS + 1
"""The number of the first process or thread of another host, whose own has too many bits."""
_MOMENT = 1.0
"""How long a fork is drawn, in microseconds; an arrow needs a span at both ends."""
_FORK_SERVER = "pytest_cudafork.process.fork_server"
_LONGEST_NAME = 120


class _Name(NamedTuple):
    """What a process is called, and what it is."""

    text: str
    kind: str


def carried(gpus: str) -> dict[str, Any]:
    """Return what a report made here is to say of its process; ``gpus`` are those of the test."""
    return {"pid": os.getpid(), "ppid": os.getppid(), "gpus": gpus}


class Trace:
    """The trace of one session; made when the session begins."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._wall = time.time()
        self._clock = time.monotonic_ns()
        self._events: list[dict[str, Any]] = []
        self._names: dict[int, _Name] = {self._pid: _Name("pytest", "pytest")}
        self._leases: dict[tuple[str, str], list[float]] = {}
        self._arrows: dict[str, int] = {}
        self._parents: dict[int, int] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a phase of a test."""
        start, stop = getattr(report, "start", None), getattr(report, "stop", None)
        if pytest_reports.is_of_subtest(report) or start is None or stop is None:
            return  # a subtest is within its test
        if not stop:  # pytest-xdist tells of a crashed worker as it is seen, without a time
            start = stop = time.time()
        about = getattr(report, CARRIED, {})
        pid = int(about.get("pid", self._pid))
        if "ppid" in about and pid != self._pid:
            self._parents[pid] = int(about["ppid"])
        begin = self._since(start)
        method = getattr(report, "isolation", "")
        self._name(pid, report, method)
        self._span(
            f"{report.nodeid} ({report.when})",
            "isolated test" if method else "test",
            (pid, pid),
            (begin, self._since(stop)),
            {"outcome": report.outcome, **({"isolation": method} if method else {})},
        )
        for gpu in filter(None, str(about.get("gpus", "")).split(",")):
            self._leases.setdefault((gpu, report.nodeid), []).extend((begin, self._since(stop)))

    def _name(self, pid: int, report: pytest.TestReport, method: str) -> None:
        worker = getattr(report, "worker_id", "")
        if method:
            name = f"isolated by {method}: {plain(report.nodeid)}"
            self._names.setdefault(pid, _Name(name, "isolated"))
        elif worker:
            self._names[pid] = _Name(f"pytest, worker {worker}", "pytest")

    def _name_of(self, pid: int) -> _Name:
        return self._names.get(pid) or _Name(process_words(pid), "unknown")

    def document(self, records: Iterable[Record]) -> dict[str, Any]:
        """Return the whole trace as plain data.

        Args:
            records: The ledger; none where nothing was checked.

        """
        events, leases = self._all_events(records)
        used = {event["pid"] for event in events}
        if leases:
            self._names[_GPUS] = _Name("GPUs", "gpus")
        names = [
            _metadata("process_name", pid, {"name": self._name_of(pid).text})
            for pid in sorted(used)
        ]
        order = {pid: index for index, pid in enumerate((_GPUS, self._pid))}
        sorting = [
            _metadata("process_sort_index", pid, {"sort_index": order.get(pid, index)})
            for index, pid in enumerate(sorted(used), len(order))
        ]
        ordered = sorted(events, key=lambda event: float(event["ts"]))
        return {
            "traceEvents": _with_short_numbers([*names, *sorting, *ordered]),
            "displayTimeUnit": "ms",
            "otherData": {"generator": f"pytest-cudafork {version}"},
        }

    def timeline(self, records: Iterable[Record]) -> dict[str, Any]:
        """Return processes and what they did when, as plain data; times are seconds.

        A process begins with the first thing that is known of it, and ends with the last. The
        arguments are those of ``document``.
        """
        events, _ = self._all_events(records)
        shown = [each for each in events if each["ph"] in "Xi"]
        times: dict[int, list[float]] = {}
        for each in shown:
            if each["pid"] != _GPUS:
                begin, length = float(each["ts"]), float(each.get("dur", 0.0))
                times.setdefault(each["pid"], []).extend((begin, begin + length))
        return {
            "processes": [
                {
                    "process": pid,
                    "name": self._name_of(pid).text,
                    "kind": self._name_of(pid).kind,
                    "parent": self._parents.get(pid),
                    "start": _seconds(min(moments)),
                    "end": _seconds(max(moments)),
                }
                for pid, moments in sorted(times.items(), key=lambda each: min(each[1]))
            ],
            "events": [
                {
                    "kind": each["cat"],
                    "name": each["name"],
                    "process": None if each["pid"] == _GPUS else each["pid"],
                    "start": _seconds(each["ts"]),
                    "seconds": 0.0 if each["cat"] == "fork" else _seconds(each.get("dur", 0.0)),
                    "details": {key: str(value) for key, value in each["args"].items()},
                }
                for each in sorted(shown, key=lambda each: float(each["ts"]))
            ],
        }

    def _all_events(
        self, records: Iterable[Record]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return all events, and those of leases alone."""
        recorded = [event for record in records for event in self._of_record(record)]
        leases = self._lease_events()
        kept, self._events = self._events, []
        self._span(
            "session", "session", (self._pid, self._pid), (0.0, self._at(time.monotonic_ns())), {}
        )
        whole, self._events = self._events, kept
        return [*kept, *whole, *leases, *recorded], leases

    def _lease_events(self) -> list[dict[str, Any]]:
        """Return the spans in which tests had GPUs, one row for each GPU."""
        rows = {gpu: number for number, gpu in enumerate(sorted({g for g, _ in self._leases}), 1)}
        threads = [
            {**_metadata("thread_name", _GPUS, {"name": f"GPU {gpu}"}), "tid": row, "ts": 0.0}
            for gpu, row in rows.items()
        ]
        kept, self._events = self._events, []
        for (gpu, nodeid), times in self._leases.items():
            self._span(nodeid, "lease", (_GPUS, rows[gpu]), (min(times), max(times)), {"gpu": gpu})
        spans, self._events = self._events, kept
        return [*threads, *spans]

    def _of_record(self, record: Record) -> list[dict[str, Any]]:
        """Return the events of one record of the ledger."""
        kind = record["k"]
        if kind == "touch":
            touch = Touch.from_record(record)
            args = {"culprit": touch.where, "words": headline(touch), "test": touch.test}
            name = "poisoned touch" if touch.poisoned else "touch"
            return [self._instant(f"{name}: {touch.entry}", "touch", record, args)]
        if kind == "fork":
            verdict = str(record.get("verdict", ""))
            args = {"verdict": verdict, "place": place_of(frames_from(record.get("stack", ())))}
            fork = self._moment(f"fork: {verdict}", "fork", record, args)
            return [fork, {**_arrow(fork), "ph": "s", "id": self._arrow_of(str(record["id"]))}]
        if kind == "child":
            pid = int(record["pid"])
            self._parents.setdefault(pid, int(record.get("ppid") or record["parent"]))
            self._names.setdefault(pid, _Name(f"forked from {record.get('parent')}", "forked"))
            born = self._moment("forked while CUDA was initialized", "fork", record, {})
            fork_id = str(record.get("fork", ""))
            if not fork_id:
                return [born]
            return [born, {**_arrow(born), "ph": "f", "bp": "e", "id": self._arrow_of(fork_id)}]
        if kind == "process":
            words = plain(" ".join(record.get("argv", ())))
            if record.get("ppid"):
                self._parents.setdefault(int(record["pid"]), int(record["ppid"]))
            is_server = _FORK_SERVER in words
            server = _Name("fork server", "fork server")
            other = _Name(words[:_LONGEST_NAME], "program")
            self._names.setdefault(int(record["pid"]), server if is_server else other)
            return [self._instant("started", "process", record, {"command": words})]
        return []

    def _span(
        self,
        name: str,
        category: str,
        row: tuple[int, int],
        times: tuple[float, float],
        args: dict[str, Any],
    ) -> None:
        begin, end = times
        self._events.append(
            {
                "ph": "X",
                "name": plain(name),
                "cat": category,
                "pid": row[0],
                "tid": row[1],
                "ts": begin,
                "dur": round(max(0.0, end - begin), 3),
                "args": args,
            }
        )

    def _instant(
        self, name: str, category: str, record: Record, args: dict[str, Any]
    ) -> dict[str, Any]:
        pid = int(record["pid"])
        return {
            "ph": "i",
            "s": "p",
            "name": plain(name),
            "cat": category,
            "pid": pid,
            "tid": int(record.get("tid") or pid),
            "ts": self._at(int(record.get("t", self._clock))),
            "args": args,
        }

    def _moment(
        self, name: str, category: str, record: Record, args: dict[str, Any]
    ) -> dict[str, Any]:
        """Return an instant as a span, at which an arrow may begin or end."""
        instant = self._instant(name, category, record, args)
        del instant["s"]
        return {**instant, "ph": "X", "dur": _MOMENT}

    def _arrow_of(self, fork: str) -> int:
        """Return the number of the arrow from a fork to its child."""
        return self._arrows.setdefault(fork, len(self._arrows) + 1)

    def _since(self, wall: float) -> float:
        """Return a moment of pytest's reports; what was before the session began is at 0."""
        return round(max(0.0, (wall - self._wall) * 1e6), 3)

    def _at(self, clock_ns: int) -> float:
        """Return a moment of the ledger, likewise."""
        return round(max(0.0, (clock_ns - self._clock) / 1e3), 3)


def _seconds(microseconds: float) -> float:
    return round(float(microseconds) / 1e6, 6)


def _metadata(name: str, pid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": pid, "args": args}


def _arrow(span: dict[str, Any]) -> dict[str, Any]:
    """Return what an arrow takes over from the span in which it begins or ends."""
    middle = round(span["ts"] + span["dur"] / 2, 3)
    return {**{key: span[key] for key in ("cat", "pid", "tid")}, "name": "fork", "ts": middle}


def _with_short_numbers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with numbers of processes and threads that fit into 32 bits."""
    short: dict[int, int] = {}

    def shorten(number: int) -> int:
        if number <= _GPUS:
            return number
        return short.setdefault(number, _FIRST_ELSEWHERE + len(short))

    return [{**each, "pid": shorten(each["pid"]), "tid": shorten(each["tid"])} for each in events]
