"""Verdicts are kept until the report is made, and travel as plain data."""

from __future__ import annotations

import json

import pytest

from pytest_cudafork.capture.interface.backend import CaptureFinding, GraphNode
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.capture.story.verdicts import CheckedCapture, note_verdict, take_verdicts

WRONG = CaptureFinding("replay-differs", "outputs differ", "outputs[0]", "/p/a.py:3", "why", "do")
UNKNOWN = CaptureFinding("not-judged", "no kernel of this name")


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [([], "passed"), ([WRONG], "failed"), ([UNKNOWN], "not judged"), ([UNKNOWN, WRONG], "failed")],
)
def test_a_verdict_is_taken_once_and_read_back_as_it_was(
    findings: list[CaptureFinding], verdict: str
) -> None:
    take_verdicts()
    log = CheckLog()
    log.did("replay-differs", "no-op-replay")
    log.cannot("not-shared", "no inputs")
    log.note("a note")
    log.findings += findings
    note_verdict("the pair", "software", log)
    (data,) = take_verdicts()
    assert take_verdicts() == []
    assert json.loads(json.dumps(data)) == data
    assert data["verdict"] == verdict
    read = CheckedCapture.from_plain(data)
    assert read.to_plain() == data
    assert read.findings == tuple(findings)
    assert read.checks == ("replay-differs", "no-op-replay")


def test_nodes_that_are_alike_and_follow_each_other_travel_as_one() -> None:
    add, mul = GraphNode("op", "aten.add", "/p/a.py:3"), GraphNode("op", "aten.mul")
    nodes = (add, add, mul, add)
    take_verdicts()
    note_verdict("it", "software", CheckLog(), nodes)
    (data,) = take_verdicts()
    assert [each["times"] for each in data["nodes"]] == [2, 1, 1]
    assert data["nodes"][0] == {
        "kind": "op", "name": "aten.add", "where": "/p/a.py:3", "times": 2
    }  # fmt: skip
    assert CheckedCapture.from_plain(data).nodes == nodes


def test_what_is_no_verdict_is_an_error() -> None:
    with pytest.raises(LookupError):
        CheckedCapture.from_plain({})
