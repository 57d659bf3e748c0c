"""Numbers of the host by line, in runs and in graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.numbers import (  # noqa: E402
    Call,
    LineNumbers,
    has_numbers,
    numbers_in,
)

CALL = Call("a.py:1", "add", ((2,),))


def test_the_run_before_a_capture_is_what_it_is_compared_with() -> None:
    known = LineNumbers()
    for at, number in enumerate((1, 2, 1, 3)):
        known.called(CALL, (number,), at)
    assert known.differing({CALL: [(1,), (3,)]}) == []
    assert known.differing({CALL: [(1,), (4,)]}) == [(CALL, (4,), (3,))]
    assert known.differing({CALL: [(0,)] * 5}) == []  # there was no such run
    assert known.differing({CALL._replace(where="b.py:1"): [(1,)]}) == []


def test_numbers_that_another_graph_has_taken_are_not_those_of_the_run_before() -> None:
    known = LineNumbers()
    known.captured({CALL: [(2,)]})
    known.called(CALL, (2,), 1)  # eager code beside that graph
    assert known.differing({CALL: [(3,)]}) == []
    known.called(CALL, (4,), 2)
    assert known.differing({CALL: [(3,)]}) == [(CALL, (3,), (4,))]
    known.forget_runs()
    assert known.differing({CALL: [(3,)]}) == []


def test_later_numbers_count_unless_a_graph_has_taken_them() -> None:
    known = LineNumbers()
    known.captured({CALL: [(1,), (2,)]})
    known.called(CALL, (7,), 1)
    known.called(CALL, (2,), 3)
    assert known.later(CALL, 2) is None
    known.called(CALL, (5,), 4)
    assert known.later(CALL, 2) == (5,)


def test_no_more_lines_are_kept_than_there_is_room_for() -> None:
    known = LineNumbers()
    for number in range(5000):
        known.called(CALL._replace(where=f"a.py:{number}"), (1,), number)
    assert len(known._outside) == 4096
    assert known.differing({CALL._replace(where="a.py:4999"): [(2,)]}) != []


def test_of_a_line_with_very_many_calls_the_last_ones_are_compared() -> None:
    known = LineNumbers()
    for at in range(300):
        known.called(CALL, (at,), at)
    assert known.differing({CALL: [(at,) for at in range(300)]}) == []
    changed = [(at + (at == 280),) for at in range(300)]
    assert known.differing({CALL: changed}) == [(CALL, (281,), (280,))]


def test_of_the_numbers_that_graphs_have_taken_the_latest_are_kept() -> None:
    known = LineNumbers()
    for number in range(5000):
        known.captured({CALL: [(number,), (-1,)]})
    known.called(CALL, (4999,), 1)
    known.called(CALL, (-1,), 2)
    assert known.later(CALL, 0) is None
    assert [len(taken) for taken in known._captured.values()] == [1024]
    for number in range(5000):
        known.captured({CALL._replace(where=f"a.py:{number}"): [(1,)], CALL: [(number,), (-1,)]})
    assert len(known._captured) == 4096
    assert known.later(CALL, 0) is None


def test_numbers_are_those_that_a_caller_chooses() -> None:
    x = torch.zeros(2, 3)
    assert has_numbers((x, 1))
    assert not has_numbers((x, x, True))
    assert numbers_in((x, 0, 1.5, None), x[0]) == ((0, 1.5), ((2, 3), (3,)))
    assert has_numbers((x, [3]))
    assert not has_numbers((x, [x], [None, x], (True,), []))
    assert numbers_in((x, [3, True], 2j), x[0]) == ((3, 2j), ((2, 3), (3,)))
    result: Any = [x]
    assert numbers_in((x,), result) == ((), ((2, 3), None))


def test_a_number_that_is_nan_in_the_graph_and_in_the_run_before_is_the_same() -> None:
    known = LineNumbers()
    x = torch.zeros(2)
    before, _ = numbers_in((x, float("nan")), x)
    inside, _ = numbers_in((x, -float("nan")), x)
    known.called(CALL, before, 1)
    assert known.differing({CALL: [inside]}) == []
    known.captured({CALL: [inside]})
    known.called(CALL, numbers_in((x, float("nan")), x)[0], 3)
    assert known.later(CALL, 2) is None
