"""Graphs of one pool whose results overwrite each other."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing.graphs import graph_pool_handle  # noqa: E402
from pytest_cudafork.capture.story.findings import source_of  # noqa: E402
from tests.support.captures import Captured, Looking, looking  # noqa: E402


@pytest.fixture
def x() -> Any:
    """What both graphs read, as long as the test runs."""
    return torch.ones(1000)


def two_graphs(look: Looking, x: Any) -> tuple[Captured, Captured]:
    """Capture two: the second one's result lies where something of the first has lain."""
    pool = graph_pool_handle()

    def first() -> Any:
        return (x * 2) + 1

    return look.capture(first, pool), look.capture(lambda: x * 3, pool)


def test_a_result_that_is_read_after_the_other_replay_is_an_error(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.replay()
        first.replay()
        assert look.kinds() == []
        result.sum()
        found = look.watching.take()["errors"]
        assert [each["kind"] for each in found] == ["overwritten-result"]
        assert found[0]["lines"][0][1].startswith(__file__)


WRITES: dict[str, Any] = {
    "one": lambda result, other, x: result.copy_(x),
    "in a list": lambda result, other, x: torch._foreach_copy_([other, result], [x, x]),
    "out": lambda result, other, x: torch.add(x, x, out=result),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_result_that_is_written_anew_and_then_read_is_right(x: Any, name: str) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.replay()
        first.replay()
        WRITES[name](result, torch.zeros(1000), x)
        result.sum()
        assert look.kinds() == []


READS: dict[str, Any] = {
    "in a list": lambda result, other, x: torch._foreach_copy_([other, other], [result, x]),
    "by name": lambda result, other, x: torch.where(x > 0, x, other=result),
    "and written": lambda result, other, x: result.add_(1),
    "in part": lambda result, other, x: (result[:10].zero_(), result.sum()),
}


@pytest.mark.parametrize("name", READS)
def test_a_result_is_read_however_an_operator_is_given_it(x: Any, name: str) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.replay()
        first.replay()
        READS[name](result, torch.zeros(1000), x)
        assert look.kinds() == ["overwritten-result"]


def test_a_graph_that_reads_the_result_is_told_with_its_line(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.result
        third = look.capture(lambda: result * 2)  # the read
        second.replay()
        third.replay()
        first.replay()
        assert look.kinds() == []
        third.replay()
        (error,) = look.watching.take()["errors"]
        assert error["kind"] == "overwritten-result"
        assert source_of(error["lines"][0][1]).endswith("# the read")
        second.replay()
        third.replay()
        assert look.kinds() == []


def test_a_result_that_is_let_go_of_and_that_a_graph_reads_is_told_likewise(x: Any) -> None:
    with looking() as look:
        pool = graph_pool_handle()
        first = look.capture(lambda: x * 2, pool)
        second = look.capture(lambda: first.result + 1, pool)  # the read
        first.result = None
        gc.collect()
        third = look.capture(lambda: x * 3, pool)  # where the first one's result has lain
        for _ in range(2):
            for each in (first, second, third):
                each.replay()
        assert look.kinds() == []
        for each in (first, third, second):
            each.replay()
        (error,) = look.watching.take()["errors"]
        assert error["kind"] == "overwritten-result"
        assert source_of(error["lines"][0][1]).endswith("# the read")
        third.replay()
        second.graph.reset()
        third.replay()
        assert not look.history.spoiled


def test_a_result_that_another_thread_has_computed_again_is_right(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.replay()
        first.replay()
        with ThreadPoolExecutor(1) as other:
            other.submit(second.replay).result()
        result.sum()
        assert look.kinds() == []


def test_a_graph_that_writes_the_result_anew_is_right(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.result
        third = look.capture(lambda: result.copy_(x) * 2)
        second.replay()
        first.replay()
        third.replay()
        assert look.kinds() == []


def test_what_the_host_takes_of_a_stand_in_is_read(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.replay()
        look.watching.watch.host_copies(result)
        first.replay()
        with look.history.pause():
            look.watching.watch.host_copies(result)
        assert look.kinds() == []
        look.watching.watch.host_copies(result)
        assert look.kinds() == ["overwritten-result"]
        look.watching.watch.host_copies(result)
        assert look.kinds() == []


def test_in_the_order_of_capture_and_with_copies_it_is_right(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        first.replay()
        second.replay().sum()
        copied = second.result.clone()
        first.replay().sum()
        copied.sum()
        second.replay().sum()
        assert look.kinds() == []


def test_a_graph_that_was_reset_overwrites_nothing(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.replay()
        second.graph.reset()
        first.replay()
        result.sum()
        assert look.kinds() == []


def test_graphs_that_are_gone_with_their_results_are_not_kept(x: Any) -> None:
    def serve(look: Looking) -> weakref.ref[Any]:
        first, second = two_graphs(look, x)
        second.replay()
        first.replay()  # overwrites what nobody reads
        return weakref.ref(second.seen)

    with looking() as look:
        seen = [serve(look) for _ in range(3)]
        gc.collect()
        assert [each() for each in seen] == [None] * 3
        look.capture(lambda: x * 2).replay()
        assert not look.history.spoiled


def test_each_test_that_reads_what_is_overwritten_is_told_of(x: Any) -> None:
    with looking() as look:
        first, second = two_graphs(look, x)
        result = second.replay()
        first.replay()
        for test in ("one", "another", "a third"):
            with look.watching.in_force(test):
                result.sum()
                result.sum()
                assert look.kinds() == ["overwritten-result"], test
        second.replay()
        with look.watching.in_force("the last"):
            result.sum()
            assert look.kinds() == []
