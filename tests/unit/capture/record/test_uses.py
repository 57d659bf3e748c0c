"""What a graph uses, in words and tensors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.uses import GraphUses, HostNumber, HostReads  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def test_reads_writes_results_and_lines_of_a_capture() -> None:
    with looking() as look:
        x, out = torch.ones(4), torch.zeros(4)

        def work() -> Any:
            out.copy_(x * 2)
            return out + 1

        captured = look.capture(work)
        uses: GraphUses = captured.seen.uses
        captured.replay()
        assert [each.tolist() for each in uses.inputs()] == [x.tolist(), out.tolist()]
        assert sorted(each.tolist() for each in uses.outputs()) == [[2.0] * 4, [3.0] * 4]
        assert [name for name, _ in uses.lines] == ["aten::mul", "aten::copy_", "aten::add"]
        assert all(where.startswith(__file__) for _, where in uses.lines)
        assert uses.work == 3
        assert {2, 1} <= uses.numbers
        (result,) = uses.made
        assert uses.covers(result)
        assert not uses.covers(look.history.memories.of(x))  # type: ignore[arg-type]


def test_numbers_are_taken_from_lists_and_truth_values_are_none() -> None:
    uses = GraphUses(1)
    uses.took([1, [2.5, (3,)], True, "4", None])
    assert uses.numbers == {1, 2.5, 3}


def test_parts_are_kept_once_and_not_without_limit() -> None:
    with looking() as look:
        x = torch.zeros(64)
        captured = look.capture(lambda: [x[i : i + 1] + 1 for i in [0, 0, *range(64)]])
        (use,) = captured.seen.uses.reads.values()
        assert len(use.parts) == 64
        assert len(set(use.parts)) == 64
        assert not use.more
        captured = look.capture(lambda: [(x[: i + 1] + 1, x[i:] + 1) for i in range(64)])
        (use,) = captured.seen.uses.reads.values()
        assert len(use.parts) == 64
        assert len(set(use.parts)) == 64
        assert use.more


def test_each_line_is_known_however_many_operators_come_before_it() -> None:
    uses = GraphUses(1)
    for number in range(6000):
        uses.did("aten::add", f"a.py:{number % 5990}")
    assert len(uses.lines) == 5990
    assert uses.lines[-1] == ("aten::add", "a.py:5989")


def test_no_line_that_reads_numbers_drops_those_of_another_one() -> None:
    reads = HostReads()
    reads.add(HostNumber(None, 7, "a.py:1", 0))
    for at in range(2000):
        reads.add(HostNumber(None, at, "a.py:2", at))
    assert 7 in [one.value for one in reads]
    latest = reads.latest("a.py:2")
    assert latest is not None
    assert latest.value == 1999
    for at in range(1000):
        reads.add(HostNumber(None, at, f"b.py:{at}", at))
    assert reads.latest("a.py:1") is None
    assert len(reads) == 128
    reads.clear()
    assert not reads
