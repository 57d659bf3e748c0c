"""The rows of the timeline: whose they are, in which order, and what is drawn in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.page.timeline import Timeline, ticks_of, timeline_of
from tests.support.session_documents import document, event, process


def timeline(processes: list[dict[str, Any]], *events: dict[str, Any]) -> Timeline:
    """Return the timeline of a session with these."""
    return timeline_of(document(timeline={"processes": processes, "events": list(events)}))


def test_a_process_stands_below_the_one_that_started_it() -> None:
    made = timeline(
        [
            process(1, "pytest", None, 0, 9),
            process(4, "program", 1, 1, 2),
            process(2, "fork server", 1, 2, 8),
            process(3, "isolated", 2, 3, 4),
            process(5, "program", 77, 3, 4),
        ]
    )
    assert [(row.number, row.depth) for row in made.rows] == [
        (1, 0),
        (4, 1),
        (2, 1),
        (3, 2),
        (5, 0),
    ]
    assert made.seconds == 9


def test_a_number_that_two_processes_had_loses_neither_row_nor_end() -> None:
    made = timeline([process(1, "program", 2, 0, 1), process(2, "program", 1, 0, 1)])
    assert sorted(row.number for row in made.rows) == [1, 2]


def test_what_happened_is_drawn_where_it_was_in_percent_of_the_whole() -> None:
    made = timeline(
        [process(1, "pytest", None, 0, 10)],
        event("test", "a.py::a (call)", 1, 2, 3, outcome="failed"),
        event("touch", "touch: cuInit", 1, 5),
    )
    (row,) = made.rows
    test, touch = row.bars
    assert (test.left, test.width, test.outcome) == (20, 30, "failed")
    assert test.words == "test: a.py::a (call) (failed)"
    assert (touch.left, touch.width, touch.kind) == (50, 0, "touch")
    assert row.more == 0
    assert [each["name"] for each in row.events] == ["a.py::a (call)", "touch: cuInit"]


def test_a_process_of_one_test_is_called_by_it_and_a_shared_one_is_not() -> None:
    own = [event("isolated test", f"a.py::a ({phase})", 1, 0) for phase in ("setup", "call")]
    assert timeline([process(1, "isolated", None, 0, 1)], *own).rows[0].label == "a.py::a"
    shared = [*own, event("isolated test", "a.py::b (call)", 1, 0)]
    assert timeline([process(1, "isolated", None, 0, 1)], *shared).rows[0].label == "isolated 1"
    told_elsewhere = timeline([process(1, "pytest", None, 0, 1)], *own).rows[0]
    assert told_elsewhere.label == "pytest 1", "of a test that died, pytest's process tells"


def test_each_gpu_has_a_row_with_the_tests_that_had_it() -> None:
    made = timeline(
        [process(1, "pytest", None, 0, 10)],
        event("lease", "a.py::b", None, 4, 2, gpu="1"),
        event("lease", "a.py::a", None, 1, 2, gpu="0"),
        event("lease", "a.py::c", None, 8, 1, gpu="1"),
    )
    rows = [(row.name, row.kind, row.start, row.end, len(row.bars)) for row in made.rows[1:]]
    assert rows == [("GPU 0", "gpu", 1, 3, 1), ("GPU 1", "gpu", 4, 9, 2)]


def test_very_many_bars_are_joined_where_they_nearly_meet_and_none_is_lost() -> None:
    count = 6000
    events = [
        event("test", f"t{n}", 1, n / 10, 0.05, outcome="failed" if n == 3000 else "passed")
        for n in range(count)
    ]
    (row,) = timeline([process(1, "pytest", None, 0, count / 10)], *events).rows
    assert len(row.bars) <= 1600
    assert [bar.outcome for bar in row.bars].count("failed") == 1
    joined = sum(int(bar.words.split()[1]) if " of them" in bar.words else 1 for bar in row.bars)
    assert joined == count
    assert "test: 4 of them (passed)" in {bar.words for bar in row.bars}
    assert (len(row.events), row.more) == (300, count - 300)


def test_a_session_without_any_time_has_a_timeline() -> None:
    made = timeline([])
    assert made.rows == ()
    assert made.seconds > 0


@given(st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_within_the_time(seconds: float) -> None:
    ticks = ticks_of(seconds)
    assert 1 <= len(ticks) <= 11
    assert ticks[0] == (0, 0)
    assert all(0 <= percent <= 100.0001 for _, percent in ticks)


def test_ticks_are_at_round_moments() -> None:
    assert [at for at, _ in ticks_of(17.0)] == pytest.approx([0, 2, 4, 6, 8, 10, 12, 14, 16])
