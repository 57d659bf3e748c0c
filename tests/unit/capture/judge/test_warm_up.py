"""Work of the run before a capture that the graph lacks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.captures import Looking, looking  # noqa: E402


class Planner:
    """A forward that plans on its first use alone, as long as nobody takes its plan away."""

    def __init__(self, of: Any) -> None:
        self.lengths = torch.tensor([1, 2, 3])
        self.of = self.lengths if of is None else of
        self.plan: Any = None

    def __call__(self) -> Any:
        total = self.lengths * 2
        if self.plan is None:
            self.plan = self.of.cumsum(0)
        return total + self.plan


def suspicions(look: Looking) -> list[Any]:
    found = look.watching.take()
    assert "errors" not in found
    return list(found.get("suspicions", ()))


def test_a_plan_of_the_warm_up_alone_is_told_before_anything_changes() -> None:
    with looking() as look:
        forward = Planner(None)
        forward()
        captured = look.capture(forward)
        captured.replay()
        (one,) = suspicions(look)
        assert one["kind"] == "missing-work"
        computed, read = (int(where.rpartition(":")[2]) for _, where in one["lines"])
        assert read == computed + 1


def test_a_plan_of_the_capture_is_part_of_the_graph() -> None:
    with looking() as look:
        forward = Planner(None)
        forward()
        forward.plan = None
        look.capture(forward).replay()
        assert suspicions(look) == []


def test_a_plan_that_was_made_before_the_warm_up_is_refreshed_by_who_made_it() -> None:
    with looking() as look:
        forward = Planner(None)
        forward.plan = forward.lengths.cumsum(0)
        forward()
        look.capture(forward).replay()
        assert suspicions(look) == []


def test_a_plan_that_is_refreshed_before_the_first_replay_is_meant() -> None:
    with looking() as look:
        forward = Planner(None)
        forward()
        captured = look.capture(forward)
        forward.plan.copy_(forward.lengths.cumsum(0))
        captured.replay()
        assert suspicions(look) == []


def test_a_table_that_follows_from_no_input_of_the_graph_is_a_cache() -> None:
    with looking() as look:
        forward = Planner(torch.arange(3))
        forward()
        look.capture(forward).replay()
        assert suspicions(look) == []


def test_a_capture_without_a_run_before_it_lacks_nothing() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan + lengths)
        captured.replay()
        assert suspicions(look) == []
