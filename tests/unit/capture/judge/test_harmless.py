"""Trying a graph with what a value would be now, and putting everything back."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.judge.again import Again  # noqa: E402
from pytest_cudafork.capture.judge.harmless import (  # noqa: E402
    is_harmless,
    random_numbers_restored,
)
from pytest_cudafork.capture.judge.replay_checks import state_of  # noqa: E402
from tests.support.captures import LateDevice, looking  # noqa: E402


@pytest.mark.parametrize(("factor", "harmless"), [(0, True), (2, False)])
def test_a_graph_tells_whether_a_value_matters_to_it(factor: int, harmless: bool) -> None:
    with looking() as look:
        lengths, total = torch.tensor([1, 2]), torch.zeros(2)
        plan = lengths.cumsum(0)

        def work() -> Any:
            total.add_(1)
            return plan * factor + torch.rand(2)

        captured = look.capture(work)
        captured.replay()
        lengths.add_(1)
        memory = look.history.memories.get(plan)
        assert memory is not None
        result, state = captured.result.clone(), torch.get_rng_state()
        with look.history.pause():
            assert is_harmless(captured.seen, memory, memory.writes[-1], Again()) is harmless
        assert total.tolist() == [1, 1]
        assert plan.tolist() == [1, 3]
        assert torch.equal(captured.result, result)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_graph_that_fails_on_it_has_told_nothing() -> None:
    with looking() as look:
        lengths = torch.tensor([0, 1])
        index, table = lengths.cumsum(0), torch.arange(2)
        captured = look.capture(lambda: table[index])
        lengths.add_(9)
        memory = look.history.memories.get(index)
        assert memory is not None
        with look.history.pause():
            assert not is_harmless(captured.seen, memory, memory.writes[-1], Again())
            captured.seen.uses.not_seen = "it cannot be seen"
            assert not is_harmless(captured.seen, memory, memory.writes[-1], Again())
        assert index.tolist() == [0, 1]


def test_the_host_waits_for_a_replay_before_it_puts_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU reads pinned memory when the copy's turn comes, and the host writes there at once."""
    with looking() as look:
        lengths = torch.tensor([1, 2])
        plan = lengths.cumsum(0)
        captured = look.capture(lambda: plan * 2)
        lengths.add_(1)
        memory = look.history.memories.get(plan)
        assert memory is not None
        found: list[list[int]] = []
        late = LateDevice(captured.seen, monkeypatch)
        late.given.append(lambda: found.append(plan.tolist()))
        with look.history.pause():
            assert not is_harmless(captured.seen, memory, memory.writes[-1], Again())
        assert found == [[1, 3]]  # a replay that was given before reads what lay there then
        assert not late.given


def test_drawing_changes_the_state_of_a_generator_and_it_is_put_back() -> None:
    before = state_of("software")
    with random_numbers_restored(torch.device("cpu")):
        torch.rand(1)
        assert state_of("software") != before
    assert state_of("software") == before


@pytest.mark.gpu
def test_on_a_gpu_the_state_is_the_offset_of_the_default_generator() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    before = state_of("cuda")
    with random_numbers_restored(torch.device("cuda")):
        torch.rand(1, device="cuda")
        assert state_of("cuda") != before
    assert state_of("cuda") == before
