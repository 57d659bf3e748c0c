"""Random numbers of a software graph: drawn at each replay, never in the capture."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402

DRAWS: dict[str, Any] = {
    "rand": lambda: torch.rand(4),
    "randn": lambda: torch.randn(4),
    "randint": lambda: torch.randint(0, 1000, (4,)),
    "randperm": lambda: torch.randperm(20),
    "rand like": lambda: torch.rand_like(torch.ones(4)),
    "uniform_": lambda: torch.empty(4).uniform_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((30,), 0.5)),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(30)),
    "multinomial": lambda: torch.multinomial(torch.ones(30), 4),
    "exponential": lambda: torch.ones(4).exponential_().log(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_it_advances_at_each_replay_and_can_be_seeded_between(name: str) -> None:
    draw = DRAWS[name]
    graph = SoftwareBackend().capture(draw)
    torch.manual_seed(7)
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn.append(graph.recording.result.clone())
    torch.manual_seed(7)
    for each in drawn:
        assert torch.equal(each, draw())
    assert not torch.equal(drawn[0], drawn[1])
    torch.manual_seed(7)
    graph.replay()
    assert torch.equal(graph.recording.result, drawn[0])


@pytest.mark.parametrize("name", DRAWS)
def test_a_capture_draws_nothing(name: str) -> None:
    before = torch.get_rng_state()
    SoftwareBackend().capture(DRAWS[name])
    assert torch.equal(before, torch.get_rng_state())


def test_a_seed_that_no_function_of_torch_was_asked_for_is_noticed() -> None:
    before = torch.get_rng_state()

    def fn() -> Any:
        torch.default_generator.manual_seed(3)
        return torch.rand(2)

    with pytest.raises(CaptureFailedError, match="random generator changed"):
        SoftwareBackend().capture(fn)
    assert torch.equal(before, torch.get_rng_state())
