"""What is told of the graphs that a program captured, out of its ledger."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.capture.in_programs.told import Captures, read_captures

FINDING = {
    "kind": "stale-data",
    "what": "the graph reads int64[2]",
    "lines": [["computed at", "/w/serve.py:7"]],
    "why": "a replay repeats what was captured",
    "todo": "compute it inside the capture",
}
OTHER = {**FINDING, "kind": "frozen-host-number"}


def record(found: Any) -> dict[str, Any]:
    return {"k": "captures", "id": "c", "pid": 1, "found": found}


def test_a_ledger_without_records_of_captures_tells_nothing() -> None:
    captures = read_captures([{"k": "touch", "id": "t", "pid": 1}])
    assert captures == Captures()
    assert captures.error_lines() + captures.other_lines() + captures.unseen() == []


def test_what_several_processes_found_is_told_once() -> None:
    captures = read_captures(
        [
            record({"errors": [FINDING], "judged": 2, "not_judged": {"a collective": 1}}),
            record({"errors": [FINDING], "suspicions": [OTHER], "judged": 3}),
            record({"not_judged": {"a collective": 1, "a kernel": 4}, "elsewhere": True}),
        ]
    )
    assert captures.errors == (FINDING,)
    assert captures.suspicions == (OTHER,)
    assert (captures.judged, captures.elsewhere) == (5, True)
    assert captures.not_judged == (("a kernel", 4), ("a collective", 2))
    assert captures.as_plain() == {
        "errors": [FINDING],
        "suspicions": [OTHER],
        "captured": 0,
        "replays": 0,
        "judged": 5,
        "not_judged": {"a kernel": 4, "a collective": 2},
    }
    [unseen] = captures.unseen()
    assert "other threads" in unseen


def test_how_much_was_looked_at_is_told_of_all_processes() -> None:
    asked = record({"asked": "absent"})
    captures = read_captures([asked, record({"captured": 1, "replays": 4}), record({"replays": 1})])
    assert captures.other_lines() == ["captured graphs looked at: 1 capture, 5 replays"]
    assert (captures.as_plain()["captured"], captures.as_plain()["replays"]) == (1, 5)


def test_that_no_graph_was_captured_is_told_where_it_was_asked() -> None:
    asked = record({"asked": "sm_90"})
    assert read_captures([asked]).other_lines() == ["captured graphs looked at: none"]
    assert read_captures([asked, record({"broken": "KeyError: 'a'"})]).other_lines() == []
    [line] = read_captures([record({"asked": "absent"})]).other_lines()
    assert line.startswith("captured graphs looked at: none; the program was shown no GPU: add ")


def test_why_nothing_was_looked_at_is_told_once() -> None:
    captures = read_captures([record({"broken": "KeyError: 'a'"})] * 2 + [record({"judged": 1})])
    assert captures.broken == ("KeyError: 'a'",)
    assert captures.unseen() == ["captured graphs were not looked at: KeyError: 'a'"]


def test_an_error_is_told_in_full_and_a_suspicion_in_short() -> None:
    captures = Captures((FINDING,), (OTHER,), (("a kernel", 4),), 5)
    lines = captures.error_lines()
    assert lines[0] == "captured graphs:"
    assert lines[1] == "    [stale-data] the graph reads int64[2]"
    assert "computed at" in lines[2]
    assert "serve.py:7" in lines[2]
    assert any("what to do: compute it inside" in line for line in lines)
    others = captures.other_lines()
    assert others[0] == "captured graphs, which may be meant so:"
    assert "[frozen-host-number]" in others[1]
    assert not any("what to do" in line for line in others)
    assert others[-2:] == [
        "not judged: 4 of 5 values that graphs read and that lines before their capture computed",
        "    a kernel",
    ]


@pytest.mark.parametrize(
    "found",
    [
        None,
        "text",
        {"errors": "text", "suspicions": [1, {}], "judged": "x", "not_judged": []},
        {"errors": [{**FINDING, "lines": ["x"]}, {**FINDING, "lines": [["a", 1]]}]},
        {"errors": [{**FINDING, "kind": 1}], "not_judged": {"a": "b"}},
    ],
)
def test_what_is_no_record_of_ours_is_no_finding(found: Any) -> None:
    captures = read_captures([record(found)])
    assert captures.errors == captures.suspicions == ()
    assert captures.judged == 0
