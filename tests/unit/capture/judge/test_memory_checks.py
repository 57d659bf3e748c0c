"""Memory of graphs that is gone, lies elsewhere or was never filled."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gc  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import weakref  # noqa: E402
from types import ModuleType  # noqa: E402

from torch.nn import Parameter  # noqa: E402

from pytest_cudafork.capture.judge.findings import Findings  # noqa: E402
from pytest_cudafork.capture.judge.memory_checks import (  # noqa: E402
    check_filled,
    check_there,
    works_unseen,
)
from pytest_cudafork.capture.story.findings import source_of  # noqa: E402
from tests.support.captures import Captured, Looking, looking  # noqa: E402


def found(check: Any, captured: Captured) -> dict[str, Any]:
    findings = Findings()
    check(captured.seen, findings)
    return findings.take()


def test_memory_that_is_there_is_right() -> None:
    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: x + torch.zeros(3))
        assert found(check_there, captured) == {}
        assert found(check_filled, captured) == {}


def test_memory_that_was_freed_or_resized_is_an_error() -> None:
    with looking() as look:
        held, y = [torch.ones(3)], torch.ones(3)
        captured = look.capture(lambda: y.add_(held[0]))
        held.clear()
        (error,) = found(check_there, captured)["errors"]
        assert error["kind"] == "freed-memory"
        assert "was freed" in error["what"]
        y.resize_(5000)
        errors = found(check_there, captured)["errors"]
        assert [("moved" in each["what"]) for each in errors] == [True, False]


def test_each_graph_is_asked_for_the_address_of_its_own_capture() -> None:
    with looking() as look:
        x, y = torch.ones(3), torch.ones(3)
        first = look.capture(lambda: y.copy_(x))
        x.resize_(5000).zero_()
        y.resize_(5000).zero_()
        second = look.capture(lambda: y.copy_(x))
        assert found(check_there, second) == {}
        assert [each["kind"] for each in found(check_there, first)["errors"]] == [
            "freed-memory"
        ] * 2
        x.data = torch.ones(5000)
        errors = found(check_there, second)["errors"]
        assert [each["kind"] for each in errors] == ["freed-memory"]


def test_a_tensor_that_was_given_other_memory_is_an_error() -> None:
    with looking() as look:
        weight = torch.nn.Parameter(torch.ones(3))
        held = weight.data
        with torch.no_grad():
            captured = look.capture(lambda: weight + 1)
        weight.data = torch.zeros(3)
        (error,) = found(check_there, captured)["errors"]
        assert error["kind"] == "moved-input"
        assert held.tolist() == [1, 1, 1]


MOVES: dict[str, Any] = {
    "the second of two that share memory": (
        lambda flat: (Parameter(flat[:2]), Parameter(flat[2:])),
        lambda one, two: setattr(two, "data", torch.zeros(2)),
    ),
    "a view": (
        lambda flat: (flat[:2], flat[2:]),
        lambda one, two: two.set_(torch.zeros(2)),
    ),
    "within its memory": (
        lambda flat: (Parameter(flat[:2]), Parameter(flat[2:])),
        lambda one, two: setattr(two, "data", one.data),
    ),
}


WITHOUT_MEMORY: dict[str, Any] = {
    "meta": lambda: torch.zeros(2, 2, device="meta"),
    "sparse": lambda: torch.zeros(2, 2).to_sparse(),
    "opaque": lambda: torch.zeros(2, 2).to_mkldnn(),
}


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_a_tensor_that_has_no_memory_any_more_has_moved(name: str) -> None:
    with looking() as look, torch.no_grad():
        weight = Parameter(torch.ones(2, 2))
        held = weight.detach()
        captured = look.capture(lambda: weight + 1)
        other = Parameter(WITHOUT_MEMORY[name](), requires_grad=False)
        torch.utils.swap_tensors(weight, other)
        captured.replay()
        told = look.watching.take()
        assert [each["kind"] for each in told["errors"]] == ["moved-input"]
        assert "not_judged" not in told
        assert held.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("name", MOVES)
def test_each_tensor_that_the_graph_read_is_looked_at(name: str) -> None:
    made, move = MOVES[name]
    with looking() as look, torch.no_grad():
        flat = torch.ones(4)
        one, two = made(flat)

        def work() -> Any:
            first = one + 1
            return first * two  # the read

        captured = look.capture(work)
        one.copy_(torch.zeros(2))
        captured.replay()
        assert look.kinds() == []
        move(one, two)
        captured.replay()
        (error,) = look.watching.take()["errors"]
        assert error["kind"] == "moved-input"
        assert source_of(error["lines"][0][1]).endswith("# the read")


def test_reading_what_nothing_has_filled_is_an_error_and_a_part_of_it_a_suspicion() -> None:
    with looking() as look:
        captured = look.capture(lambda: torch.empty(3) + 1)
        (error,) = found(check_filled, captured)["errors"]
        assert "none of the elements" in error["what"]

        def half() -> Any:
            made = torch.empty(4)
            made[:2].fill_(1)
            return made + 1

        captured = look.capture(half)
        (suspicion,) = found(check_filled, captured)["suspicions"]
        assert "2 of 4 of the elements" in suspicion["what"]
        outside = torch.empty(3)
        captured = look.capture(lambda: outside + 1)
        (suspicion,) = found(check_there, captured)["suspicions"]
        assert "was not seen to be written" in suspicion["what"]


def test_where_kernels_pass_no_operator_nothing_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    with looking() as look:
        captured = look.capture(lambda: torch.empty(3) + 1)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    assert works_unseen(captured.seen) == ""
    captured.seen.backend = "cuda"
    assert works_unseen(captured.seen).startswith("cupy is imported")
    assert "errors" not in found(check_filled, captured)
    captured.seen.uses.not_seen = "it is dark"
    assert works_unseen(captured.seen) == "it is dark"


def _permuted(rows: Any, *, by: str) -> Any:
    made, order = torch.empty(4, 2), torch.arange(4).flip(0)
    if by == "assignment":
        made[order] = rows
    elif by == "index_copy_":
        made.index_copy_(0, order, rows)
    elif by == "scatter_":
        made.scatter_(0, order[:, None].expand(4, 2), rows)
    else:
        made.index_fill_(0, order, 3.0)
    return made + 1


@pytest.mark.parametrize("by", ["assignment", "index_copy_", "scatter_", "index_fill_"])
def test_values_that_are_put_at_their_places_fill_fresh_memory(by: str) -> None:
    with looking() as look:
        rows = torch.ones(4, 2)
        assert found(check_filled, look.capture(lambda: _permuted(rows, by=by))) == {}


def test_values_that_are_added_to_fresh_memory_read_it() -> None:
    with looking() as look:
        rows, order = torch.ones(4, 2), torch.arange(4)
        captured = look.capture(lambda: torch.empty(4, 2).index_add_(0, order, rows))
        (error,) = found(check_filled, captured)["errors"]
        assert "none of the elements" in error["what"]


def test_fresh_memory_of_which_places_are_left_out_is_a_suspicion() -> None:
    with looking() as look:
        rows, order = torch.ones(2, 2), torch.arange(2)

        def two_of_four() -> Any:
            made = torch.empty(4, 2)
            made[order] = rows
            return made + 1

        (suspicion,) = found(check_filled, look.capture(two_of_four))["suspicions"]
        assert "4 of 8 of the elements" in suspicion["what"]


def test_rrelu_that_does_not_train_draws_nothing_and_reads_no_noise() -> None:
    with looking() as look:
        x = -torch.ones(3)
        captured = look.capture(lambda: torch.rrelu(x, training=False))
        captured.replay()
        assert look.kinds() == []
        captured = look.capture(lambda: torch.rrelu(x, training=True))
        captured.replay()
        assert look.kinds() == []


def test_memory_that_was_filled_in_part_is_told_with_the_line_that_made_it() -> None:
    def work() -> Any:
        made = torch.empty(8)  # made here
        made[:4] = 1
        return made * 2

    with looking() as look:
        look.capture(work)
        (found,) = look.watching.take()["suspicions"]
    assert found["kind"] == "unfilled-read"
    words, where = found["lines"][0]
    assert (words, source_of(where)) == ("handed out at", "made = torch.empty(8)  # made here")


def test_the_first_answer_that_no_replay_has_computed_is_an_error() -> None:
    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: x * 2)
        answer = captured.result.clone()  # taken
        answer.sum().item()  # read
        (found,) = look.watching.take()["errors"]
    assert found["kind"] == "unfilled-read"
    assert "float32[3]" in found["what"]
    (_, taken), (_, read), (_, begun) = found["lines"]
    assert taken.startswith(__file__)
    assert int(read.rpartition(":")[2]) == int(taken.rpartition(":")[2]) + 1
    assert begun == captured.seen.where


def test_each_test_that_takes_what_no_replay_has_computed_is_told_of() -> None:
    with looking() as look:
        x = torch.ones(3)
        captured, other = look.capture(lambda: x * 2), look.capture(lambda: x * 3)
        for test in ("one", "another"):
            with look.watching.in_force(test):
                captured.result.sum().item()
                other.result.sum().item()
                assert look.kinds() == ["unfilled-read"] * 2, test
        captured.replay()
        other.result.copy_(x)
        with look.watching.in_force("the last"):
            captured.result.sum().item()
            other.result.sum().item()
            assert look.kinds() == []


def test_a_replay_of_another_thread_computes_them_too() -> None:
    with looking() as look:
        x = torch.ones(3)
        captured, other = look.capture(lambda: x * 2), look.capture(lambda: x * 3)
        thread = threading.Thread(target=captured.graph.replay)
        thread.start()
        thread.join()
        assert captured.result.sum().item() == 6
        assert look.kinds() == []
        other.result.sum().item()
        assert look.kinds() == ["unfilled-read"]


def test_what_runs_between_pieces_and_is_thrown_away_is_right() -> None:
    with looking() as look:
        x = torch.ones(3)
        first = look.capture(lambda: x * 2)
        between = torch.relu(first.result) + 1
        second = look.capture(lambda: between * 3)
        torch.relu(second.result)
        first.replay()
        between.copy_(torch.relu(first.result) + 1)
        assert second.replay().sum().item() == 27
        assert look.kinds() == []


def test_a_buffer_of_the_capture_that_the_caller_fills_is_right() -> None:
    with looking() as look:
        buffer = look.capture(lambda: torch.empty(3)).result
        buffer.zero_()
        assert buffer.sum().item() == 0
        assert look.kinds() == []


def test_a_stand_in_tells_of_copies_to_the_host() -> None:
    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: x * 2)
        look.watching.watch.host_copies(captured.result)
        assert look.kinds() == ["unfilled-read"]
        captured.replay()
        look.watching.watch.host_copies(captured.result)
        with look.watching.watch.suspended():
            look.watching.watch.host_copies(captured.result)
        assert look.kinds() == []


def test_graphs_that_are_gone_and_were_never_replayed_are_not_kept() -> None:
    def capture(look: Looking) -> weakref.ref[Any]:
        x = torch.ones(3)
        return weakref.ref(look.capture(lambda: x * 2).seen)

    with looking() as look:
        seen = [capture(look) for _ in range(3)]
        gc.collect()
        assert [each() for each in seen] == [None] * 3


def test_an_element_that_is_read_several_times_is_written_once() -> None:
    with looking() as look:
        x, other = torch.rand(3), torch.rand(4, 3)

        def work() -> Any:
            fresh = torch.empty(3)
            fresh.copy_(x)
            return fresh.expand(4, 3) + other

        assert found(check_filled, look.capture(work)) == {}
        (error,) = found(check_filled, look.capture(lambda: torch.empty(3).expand(4, 3) + other))[
            "errors"
        ]
        assert "none of the elements were written" in error["what"]
