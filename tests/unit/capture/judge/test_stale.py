"""Stale derived data: what is accused, suspected, silent, and not judged."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.values import Operation  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.errors import ReplayFailedError  # noqa: E402
from tests.support.captures import Looking, looking  # noqa: E402


def told(look: Looking) -> dict[str, Any]:
    return look.watching.take()


def test_a_plan_of_lengths_that_have_changed_is_an_error_with_three_lines() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        captured.replay()
        assert "errors" not in told(look)
        lengths.copy_(torch.tensor([2, 2, 2]))
        for _ in range(2):  # the second replay is judged by what is known of the first
            captured.replay()
            (error,) = told(look)["errors"]
        assert error["kind"] == "stale-data"
        assert "element 0 is 1 and would be 2" in error["what"]
        words = [what for what, _ in error["lines"]]
        assert words == ["computed at", "read by the graph at", "input changed at"]
        lines = [int(where.rpartition(":")[2]) for _, where in error["lines"]]
        first = lines[0]
        assert lines == [first, first + 1, first + 4]


def test_a_plan_that_the_host_makes_within_the_capture_comes_by_pinned_memory() -> None:
    with CudaTensors(), looking() as look:
        lengths, staging = torch.tensor([1, 2, 3]), torch.zeros(3, dtype=torch.int64).pin_memory()
        plan = torch.zeros(3, dtype=torch.int64, device="cuda")

        def work() -> Any:
            staging.copy_(lengths.cumsum(0))
            return plan.copy_(staging, non_blocking=True) * 2

        captured = look.capture(work)
        captured.replay()
        assert told(look).keys() & {"errors", "suspicions"} == set()
        lengths.copy_(torch.tensor([2, 2, 2]))
        captured.replay()
        (found,) = told(look)["errors"]
        assert found["kind"] == "stale-data"
        assert "computed by the host within the capture" in found["what"]


def test_a_plan_that_was_refreshed_once_was_computed_after_the_capture() -> None:
    with looking() as look:
        lengths, plan = torch.tensor([1, 2, 3]), torch.zeros(3, dtype=torch.int64)
        plan[:] = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        lengths.fill_(2)
        plan[:] = torch.cumsum(lengths, 0)
        captured.replay()
        lengths.fill_(3)
        captured.replay()
        found = told(look)["suspicions"]
        assert ["computed after the capture" in each["what"] for each in found] == [True]


@pytest.mark.parametrize("refreshed", [False, True])
def test_lengths_that_were_drawn_and_computed_with_are_an_input_as_others_are(
    refreshed: bool,
) -> None:
    with looking() as look:
        lengths = torch.zeros(3, dtype=torch.int64)

        def fill() -> None:
            drawn = torch.randint(1, 100, (3,)) * 2
            lengths.copy_(drawn.clamp_(min=lengths.max() + 1))

        fill()
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        for _ in range(2):
            fill()
            if refreshed:
                torch.cumsum(lengths, 0, out=plan)
            captured.replay()
        found = told(look)
    assert [each["kind"] for each in found.get("errors", ())] == ["stale-data"][refreshed:]
    assert "not_judged" not in found


def test_lengths_that_another_line_has_drawn_are_suspected() -> None:
    with looking() as look:
        lengths = torch.zeros(3, dtype=torch.int64)
        lengths.copy_(torch.randint(1, 9, (3,)) * 2)
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        lengths.copy_(torch.randint(20, 30, (3,)) * 2)
        captured.replay()
        found = told(look)
    assert [each["kind"] for each in found.get("suspicions", ())] == ["stale-data"]
    assert "errors" not in found
    assert "not_judged" not in found


def test_a_plan_that_is_refreshed_in_place_is_right() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        lengths.add_(1)
        plan.copy_(lengths.cumsum(0))
        captured.replay()
        assert look.kinds() == []


def test_a_table_that_does_not_depend_on_what_changed_is_right() -> None:
    with looking() as look:
        positions = torch.arange(4)
        table = torch.outer(positions, 1.0 / (1 + torch.arange(2))).cos()
        captured = look.capture(lambda: table[positions])
        positions.copy_(torch.tensor([3, 2, 1, 0]))
        captured.replay()
        found = told(look)
    assert "errors" not in found or found["errors"][0]["what"].startswith("the graph reads float32")


def test_what_changes_nothing_in_the_results_is_harmless() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 0)
        lengths.add_(1)
        captured.replay()
        assert "errors" not in told(look)
        assert captured.result.tolist() == [0, 0, 0]


def test_a_copy_of_an_input_may_be_a_snapshot_on_purpose() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        snapshot = lengths.clone()
        captured = look.capture(lambda: snapshot * 2)
        lengths.add_(1)
        captured.replay()
        found = told(look)
    assert "errors" not in found
    assert [each["kind"] for each in found["suspicions"]] == ["stale-data"]


def test_an_input_that_numpy_changed_is_seen_to_have_changed() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        lengths.numpy()[:] = 7
        captured.replay()
        (error,) = told(look)["errors"]
    assert error["lines"][2][0] == (
        "input changed unseen (past torch's operators, by another thread, or while nobody looked) "
        "since"
    )
    assert error["lines"][2][1].startswith(__file__)


def test_a_plan_that_numpy_has_refreshed_is_not_judged() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        lengths.add_(1)
        plan.numpy()[:] = [2, 5, 9]
        captured.replay()
        found = told(look)
    assert "errors" not in found
    (why,) = found["not_judged"]
    assert "written past torch's operators" in why
    assert found["judged"] == 1


def test_what_cannot_be_had_again_is_counted() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        noise = torch.randint(0, 9, (2000,))
        plan = (noise[:3] + 1) * lengths
        del noise
        captured = look.capture(lambda: plan * 2)
        lengths.add_(1)
        captured.replay()
        found = told(look)
    assert "errors" not in found
    (why,) = found["not_judged"]
    assert "an input is gone" in why


def test_what_the_graph_writes_itself_is_its_own() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)

        def work() -> Any:
            plan.copy_(lengths.cumsum(0))
            return plan * 2

        captured = look.capture(work)
        lengths.add_(1)
        captured.replay()
        assert look.kinds() == []


def test_a_plan_that_is_refreshed_before_each_replay_is_not_kept_for_ever() -> None:
    def operations() -> int:
        gc.collect()
        return sum(type(each) is Operation for each in gc.get_objects())

    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        counts = []
        for _ in range(2):
            for _ in range(40):
                lengths.add_(1)
                plan.copy_(lengths.cumsum(0))
                captured.replay()
            counts.append(operations())
    assert counts[1] - counts[0] < 40


def test_what_came_about_before_recording_began_is_not_judged() -> None:
    lengths = torch.tensor([1, 2, 3])
    plan, out = lengths.cumsum(0), torch.empty(3)
    with looking() as look:
        look.capture(lambda: plan * 2)
        assert "not_judged" not in told(look)
        look.history.missed = True
        other = torch.tensor([1, 2, 3]).cumsum(0)
        look.capture(lambda: out.copy_(plan * other))
        assert other.sum() == 10
        (why,) = told(look)["not_judged"].items()
    assert "until the software graph was imported" in why[0]
    assert why[1] == 1


def _plan_by_places() -> tuple[Any, ...]:
    places, table = torch.tensor([1, 2, 3]), torch.rand(4, 8)
    return places, table[:, places], table


def _plan_by_a_sorter() -> tuple[Any, ...]:
    order, row, values = torch.arange(8), torch.arange(7.0, -1, -1), torch.tensor([2.5, 4.5])
    return order, torch.searchsorted(row, values, sorter=order), row, values


def _plan_with_numbers_of_the_host() -> tuple[Any, ...]:
    lengths, scale = torch.tensor([1, 2, 3]), torch.tensor([0.5, 2.0, 1.0])
    return lengths, lengths * scale, scale


def _plan_on_itself() -> tuple[Any, ...]:
    lengths, plan = torch.tensor([1, 2, 3]), torch.zeros(3, dtype=torch.int64)
    plan.copy_(lengths)
    torch.cumsum(plan, 0, out=plan)
    return lengths, plan


def _plan_in_what_was_empty() -> tuple[Any, ...]:
    lengths, plan = torch.tensor([1, 2, 3]), torch.empty(0, dtype=torch.int64)
    return lengths, torch.cumsum(lengths, 0, out=plan)


@pytest.mark.parametrize(
    "made",
    [
        _plan_by_places,
        _plan_by_a_sorter,
        _plan_with_numbers_of_the_host,
        _plan_on_itself,
        _plan_in_what_was_empty,
    ],
)
def test_a_plan_is_judged_however_its_input_was_given(made: Any) -> None:
    with looking() as look:
        lengths, plan, *_others = made()
        captured = look.capture(lambda: plan * 2)
        captured.replay()
        lengths.add_(0)
        captured.replay()
        assert told(look).keys() <= {"judged", "captures", "replays", "backends"}
        lengths.copy_(torch.tensor(lengths.tolist()[::-1]))
        captured.replay()
        (error,) = told(look)["errors"]
        assert error["kind"] == "stale-data"


def test_complex_numbers_are_taken_as_floating_point_numbers_are() -> None:
    with looking() as look:
        weights = torch.tensor([1 + 2j, 3 - 4j])
        plan = weights * 2
        captured = look.capture(lambda: plan * 2)
        weights.mul_(2)
        captured.replay()
        assert told(look).keys() <= {"captures", "replays", "backends"}


def test_each_of_many_parts_that_a_graph_reads_is_judged_or_said_not_to_be() -> None:
    with looking() as look:
        lengths = torch.arange(80)
        plan, out = lengths + 1, torch.zeros(80, dtype=torch.int64)

        def work(count: int) -> None:
            for layer in range(count):
                out[layer].copy_(plan[layer] * 2)

        some, many = look.capture(lambda: work(40)), look.capture(lambda: work(80))
        some.replay()
        many.replay()
        assert told(look).keys() <= {"judged", "captures", "replays", "backends"}
        lengths[75] += 5
        some.replay()
        assert told(look).keys() <= {"judged", "captures", "replays", "backends"}
        many.replay()
        (why,) = told(look)["not_judged"]
        assert why.endswith("the graph reads more parts of it than are looked at")
        lengths[30] += 5
        some.replay()
        assert [each["kind"] for each in told(look)["errors"]] == ["stale-data"]


def test_an_input_whose_memory_was_given_up_is_gone_and_stays_so() -> None:
    with looking() as look:
        lengths = torch.tensor([1, 2, 3])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        lengths.untyped_storage().resize_(0)  # as libraries do that shard weights
        captured.replay()
        assert told(look).keys() <= {"judged", "captures", "replays", "backends"}
        assert lengths.untyped_storage().nbytes() == 0
        other = look.capture(lambda: plan * 3)
        other.replay()
        assert told(look).keys() <= {"judged", "captures", "replays", "backends"}
        plan.untyped_storage().resize_(0)
        with pytest.raises(ReplayFailedError):
            captured.replay()
        assert [each["kind"] for each in told(look)["errors"]] == ["freed-memory"]
        assert plan.untyped_storage().nbytes() == 0
