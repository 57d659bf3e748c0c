"""The trace of a session: valid, one row a process, each thing at its moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="jsonschema validates what is written")

import jsonschema

from pytest_cudafork.observe.base.other_hosts import moved_number
from pytest_cudafork.report.trace import CARRIED, Trace, carried
from tests.support.checked_sessions import TEST, LedgerSession, report
from tests.support.trace_events import valid_events

HERE = os.getpid()
AGO = 1000
"""Seconds since the session began; what a test here tells of it has been, on any machine."""


def begun() -> Trace:
    """Return the trace of a session that began a while ago."""
    trace = Trace()
    trace._wall -= AGO
    trace._clock -= AGO * 10**9
    return trace


def phase(trace: Trace, when: str, begin: float, end: float, **about: Any) -> pytest.TestReport:
    """Return a report of a phase between two moments, in seconds since the trace began."""
    return report(when, start=trace._wall + begin, stop=trace._wall + end, **about)


def names(events: list[dict[str, Any]]) -> dict[int, str]:
    """Return the names of the rows."""
    told = (event for event in events if event["name"] == "process_name")
    return {event["pid"]: event["args"]["name"] for event in told}


def spans(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    """Return the spans of a category."""
    return [each for each in events if each["ph"] == "X" and each["cat"] == category]


def test_tests_are_in_the_row_of_their_process() -> None:
    trace = begun()
    trace.add(phase(trace, "call", 1, 3, **{CARRIED: carried("")}))
    trace.add(phase(trace, "call", 4, 5, isolation="spawn", **{CARRIED: {"pid": 77, "gpus": ""}}))
    trace.add(phase(trace, "setup", 5, 6, worker_id="gw3", **{CARRIED: {"pid": 88, "gpus": ""}}))
    events = valid_events(trace.document([]))
    assert names(events) == {
        HERE: "pytest",
        77: f"isolated by spawn: {TEST}",
        88: "pytest, worker gw3",
    }
    here, worker = spans(events, "test")
    assert (here["name"], here["args"]) == (f"{TEST} (call)", {"outcome": "passed"})
    assert here["dur"] == pytest.approx(2e6, abs=1)
    assert worker["ts"] - here["ts"] == pytest.approx(4e6, rel=0.01), "at its moment"
    (isolated,) = spans(events, "isolated test")
    assert isolated["args"]["isolation"] == "spawn"
    (session,) = spans(events, "session")
    assert session["ts"] == 0


def test_what_has_no_times_is_left_out_and_what_was_before_is_at_the_beginning() -> None:
    class SubtestReport(pytest.TestReport):
        """A report of a subtest."""

    trace = begun()
    subtest = phase(trace, "call", 0, 1)
    subtest.__class__ = SubtestReport
    trace.add(subtest)
    trace.add(phase(trace, "call", -500, -400))
    (span,) = spans(valid_events(trace.document([])), "test")
    assert (span["ts"], span["dur"]) == (0, 0)


def test_a_worker_that_crashed_is_told_when_that_was_seen() -> None:
    """Its report is one of pytest-xdist, with no time: at the beginning no test had run."""
    trace = begun()
    crashed = pytest.TestReport(TEST, ("test_a.py", None, ""), {}, "failed", "crashed", "???")  # type: ignore[arg-type]
    trace.add(crashed)
    (span,) = spans(valid_events(trace.document([])), "test")
    assert span["name"] == f"{TEST} (???)"
    assert span["ts"] >= AGO * 1e6
    assert span["dur"] == 0


def test_each_gpu_has_a_row_with_the_tests_that_had_it() -> None:
    trace = begun()
    for when, begin, end in (("setup", 1, 2), ("call", 2, 4), ("teardown", 4, 5)):
        trace.add(phase(trace, when, begin, end, **{CARRIED: {"pid": HERE, "gpus": "1,GPU-a"}}))
    events = valid_events(trace.document([]))
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(rows.values()) == {"GPU 1", "GPU GPU-a"}
    leases = spans(events, "lease")
    assert {rows[each["tid"]] for each in leases} == set(rows.values())
    for each in leases:
        assert names(events)[each["pid"]] == "GPUs"
        assert each["name"] == TEST
        assert each["dur"] == pytest.approx(4e6, rel=0.01)
    assert trace.document([])["traceEvents"], "it may be asked for twice"


def test_touches_forks_and_programs_of_the_ledger(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    trace = begun()
    session.touch(3)
    session.touch(9, pid=55, tid=56, poisoned=True)
    fork = session.fork(5, verdict="unguarded")
    session.ledger.append("child", pid=55, tid=55, parent=HERE, fork=fork)
    session.ledger.append("child", pid=58, tid=58, parent=HERE, fork="")
    server = ["python", "-c", "from pytest_cudafork.process.fork_server import main"]
    session.ledger.append("process", pid=60, tid=60, argv=server)
    session.ledger.append("process", pid=61, tid=61, argv=["python", "server.py"])
    session.ledger.append("told", culprit="x", at="y")
    events = valid_events(trace.document(session.observer.records()))
    assert names(events) == {
        HERE: "pytest",
        55: f"forked from {HERE}",
        58: f"forked from {HERE}",
        60: "fork server",
        61: "python server.py",
    }
    told = {(each["pid"], each["name"]): each for each in events if each["ph"] == "i"}
    assert told[HERE, "touch: cuInit"]["args"]["culprit"] == f"{tmp_path}/test_a.py:3"
    assert told[55, "poisoned touch: cuInit"]["tid"] == 56
    (forked,) = [each for each in spans(events, "fork") if each["name"] == "fork: unguarded"]
    assert forked["args"]["place"].endswith("test_a.py:5")
    (begins,) = [each for each in events if each["ph"] == "s"]
    (ends,) = [each for each in events if each["ph"] == "f"]
    assert begins["id"] == ends["id"]
    assert (begins["pid"], ends["pid"]) == (HERE, 55)
    times = [each["ts"] for each in events if each["ph"] in "iX"]
    assert times == sorted(times)


def test_processes_of_other_hosts_have_numbers_that_can_be_drawn(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    trace = begun()
    far = moved_number(55, 2)
    session.touch(9, pid=far, tid=moved_number(56, 2))
    session.touch(9, pid=far, tid=far)
    events = valid_events(trace.document(session.observer.records()))
    assert set(names(events).values()) == {"pytest", "process 55 of host 2"}
    first, second = (each for each in events if each["ph"] == "i")
    assert first["pid"] == second["pid"] == second["tid"] != first["tid"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ph": "Q"},
        {"ts": -1},
        {"dur": "long"},
        {"pid": "p"},
        {"pid": 0},
        {"tid": 1 << 32},
        {"more": 1},
        {"name": ""},
    ],
    ids=str,
)
def test_what_checks_it_here_refuses_what_is_none(wrong: dict[str, Any]) -> None:
    trace = begun()
    trace.add(phase(trace, "call", 0, 1))
    document = trace.document([])
    event = next(each for each in document["traceEvents"] if each["ph"] == "X")
    event.update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        valid_events(document)


def test_what_checks_it_here_refuses_what_no_viewer_draws() -> None:
    row = {"pid": 1, "tid": 1}
    name = {"ph": "M", "name": "process_name", "args": {"name": "it"}, **row}

    def span(begin: float, seconds: float) -> dict[str, Any]:
        return {"ph": "X", "name": "x", "ts": begin, "dur": seconds, **row}

    def arrow(phase: str, at: float, name: str = "fork") -> dict[str, Any]:
        return {"ph": phase, "name": name, "cat": "fork", "id": 1, "ts": at, **row}

    good = [span(0, 4), span(1, 2), span(3, 1), span(5, 1), arrow("s", 2), arrow("f", 5.5)]
    assert len(valid_events({"traceEvents": [name, *good]})) == 7
    for wrong, words in (
        ([span(0, 4), span(3, 2)], "overlap"),
        ([span(0, 4), arrow("s", 4.5)], "no span holds"),
        ([span(0, 4), arrow("s", 1), arrow("f", 2, "other")], "from nowhere"),
    ):
        with pytest.raises(AssertionError, match=words):
            valid_events({"traceEvents": [name, *wrong]})


def test_the_timeline_has_each_process_from_its_first_thing_to_its_last(tmp_path: Path) -> None:
    session = LedgerSession(tmp_path)
    trace = begun()
    about = {"pid": 77, "ppid": HERE, "gpus": "0"}
    trace.add(phase(trace, "call", 4, 5, isolation="spawn", **{CARRIED: about}))
    fork = session.fork(5, verdict="unguarded")
    session.ledger.append("child", pid=55, tid=55, ppid=77, parent=HERE, fork=fork)
    session.ledger.append("process", pid=61, tid=61, ppid=55, argv=["python", "server.py"])
    session.touch(9, pid=61, tid=61)
    told = trace.timeline(session.observer.records())
    assert json.loads(json.dumps(told)) == told
    made = {each["process"]: each for each in told["processes"]}
    assert {pid: each["parent"] for pid, each in made.items()} == {
        HERE: None, 77: HERE, 55: 77, 61: 55
    }  # fmt: skip
    assert (made[77]["start"], made[77]["end"]) == pytest.approx((4, 5), abs=0.5)
    assert made[61]["name"] == "python server.py"
    assert {pid: each["kind"] for pid, each in made.items()} == {
        HERE: "pytest", 77: "isolated", 55: "forked", 61: "program"
    }  # fmt: skip
    assert told["processes"][0]["process"] == HERE, "the first that began"
    events = {(each["kind"], each["process"]): each for each in told["events"]}
    assert events.keys() == {
        ("session", HERE), ("isolated test", 77), ("lease", None), ("fork", HERE), ("fork", 55),
        ("process", 61), ("touch", 61),
    }  # fmt: skip
    assert events["isolated test", 77]["seconds"] == pytest.approx(1, abs=1e-3)
    assert events["fork", HERE]["seconds"] == 0, "a moment"
    assert events["touch", 61]["details"]["culprit"] == f"{tmp_path}/test_a.py:9"
    starts = [each["start"] for each in told["events"]]
    assert starts == sorted(starts)
    names_of_spans = [each["name"] for each in spans(valid_events(trace.document([])), "session")]
    assert names_of_spans == ["session"], "one, however often it was asked for"
