"""Results that the host reads before the first replay."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.support.captures import Looking, looking  # noqa: E402


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
