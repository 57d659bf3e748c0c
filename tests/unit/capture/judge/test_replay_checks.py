"""Graphs without work, and random numbers that repeat."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing import graphs  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing.random_numbers import Generator  # noqa: E402
from tests.support.captures import looking  # noqa: E402


def test_a_graph_without_work_is_an_error() -> None:
    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: x[1:])
        assert look.kinds() == []
        captured.replay()
        assert look.kinds() == ["no-op-replay"]
        captured.seen.uses.not_seen = "it cannot be seen"
        captured.replay()
        found = look.watching.take()
        assert "errors" not in found
        assert found["suspicions"][0]["why"] == "it cannot be seen"


def test_work_that_the_driver_counts_is_work_though_no_operator_was_seen() -> None:
    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: x[1:])
        captured.seen.work = 2
        captured.replay()
        assert look.kinds() == look.kinds("suspicions") == []
        captured.seen.work, captured.seen.uses.not_seen = 0, "it cannot be seen"
        captured.replay()
        assert look.kinds() == ["no-op-replay"], "the driver has seen all of it"


def test_random_numbers_that_advance_are_right_and_seeding_between_is_suspicious() -> None:
    with looking() as look:
        captured = look.capture(lambda: torch.rand(3))
        captured.replay()
        captured.replay()
        assert look.kinds() == []
        for _ in range(2):
            torch.manual_seed(0)
            captured.replay()
        assert look.kinds("suspicions") == ["rng-frozen"]


def test_random_numbers_that_do_not_advance_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with looking() as look:
        captured = look.capture(lambda: torch.rand(3))
        state = torch.get_rng_state()
        run = captured.graph._capture._run
        monkeypatch.setattr(
            captured.graph._capture, "_run", lambda: (run(), torch.set_rng_state(state))
        )
        captured.replay()
        assert look.kinds() == ["rng-frozen"]


def test_a_generator_of_its_own_is_looked_at_where_the_graph_draws_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, x, graph = Generator(), torch.ones(3), graphs.CUDAGraph()
    graph.register_generator_state(own)
    with looking() as look:
        with graphs.graph(graph):
            x.normal_(generator=own)
        graph.replay()
        torch.manual_seed(0)  # nothing is drawn from the default one
        graph.replay()
        torch.manual_seed(0)
        graph.replay()
        assert look.kinds() == look.kinds("suspicions") == []
        for _ in range(2):
            own.manual_seed(0)
            graph.replay()
        assert look.kinds("suspicions") == ["rng-frozen"]
        capture: Any = graph._capture
        state, run = own.get_state(), capture._run
        monkeypatch.setattr(capture, "_run", lambda: (run(), own.set_state(state)))
        torch.rand(1)
        graph.replay()
        assert look.kinds() == ["rng-frozen"]


def test_random_numbers_are_judged_where_numpy_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_numpy(self: object) -> None:
        raise RuntimeError("Numpy is not available")

    with looking() as look:
        x = torch.ones(3)
        captured = look.capture(lambda: torch.rand_like(x))
        monkeypatch.setattr(torch.Tensor, "numpy", no_numpy)
        for _ in range(2):
            torch.manual_seed(0)
            captured.replay()
        found = look.watching.take()
    assert "not_judged" not in found
    assert [each["kind"] for each in found["suspicions"]] == ["rng-frozen"]
