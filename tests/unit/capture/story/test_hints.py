"""Which class of bug a difference looks like."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.backend import GraphNode  # noqa: E402
from pytest_cudafork.capture.state.compare import Difference  # noqa: E402
from pytest_cudafork.capture.story.hints import Reading, Symptoms, explain  # noqa: E402

ONE = Difference("output", "output: 1 of 2 elements differ")
OLD, NEW = torch.zeros(2), torch.ones(2)


def read(one: Difference = ONE, **seen: Any) -> Reading:
    """How a difference is told, of which nothing else is known unless it is given."""
    facts: dict[str, Any] = {
        "other_work_ran": False, "first": None, "expected": NEW, "got": OLD, "unwritten": None,
        "number": 0, "refills": False, "nodes": (),
    }  # fmt: skip
    return explain(one, Symptoms(**{**facts, **seen}))


def test_a_value_of_python_is_told_as_one() -> None:
    assert "Python does not run in a replay" in read(ONE._replace(host=True)).why


def test_a_replay_that_wrote_nothing() -> None:
    nothing = torch.ones(2, dtype=torch.bool)
    empty = read(unwritten=nothing)
    assert (empty.check, empty.why) == ("no-op-replay", "the graph is empty")
    some = read(unwritten=nothing, nodes=(GraphNode("op", "aten::mm"),))
    assert "wrote none of its 2 elements" in some.words
    assert "eager code leaves the right answer" in some.why


@pytest.mark.parametrize(
    ("unwritten", "tail"),
    [
        ([[False, False], [True, True]], True),
        ([[True, True], [False, False]], False),
        ([[False, True], [True, True]], False),
    ],
)
def test_rows_at_the_end_that_were_not_written(unwritten: Any, tail: bool) -> None:
    told = read(unwritten=torch.tensor(unwritten))
    assert "elements were not written at all" in told.words
    assert ("larger than the batch" in told.why) is tail


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"first": {"output": OLD}}, "it looks frozen"),
        ({"refills": True}, "it looks like stale padding"),
        ({"other_work_ran": True}, "memory that is shared"),
        ({"number": 1}, "the first replay was right and the second is not"),
        ({}, "the graph computes something else"),
    ],
)
def test_what_it_looks_like(seen: Any, words: str) -> None:
    told = read(**seen)
    assert told.check == "replay-differs"
    assert words in told.why
    assert told.todo


def test_nan_alone_looks_uninitialized() -> None:
    assert "it looks uninitialized" in read(ONE._replace(only_nan=True)).why
