"""The check not-shared: persistent inputs lie in the same memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from tests.support.capture import Desc  # noqa: E402
from tests.support.capture_pair import Meta, Runner, State, findings  # noqa: E402


def test_a_copy_of_a_persistent_input_is_found() -> None:
    class Copies(Runner):
        def build(self, desc: Desc) -> State:
            return State({"layers.0": Meta(self.lens.clone())}, {"layers.0": self.slots})

    found = findings(Copies().check)
    assert "state.attn_metadata['layers.0'].seq_lens" in found["not-shared"]
    runner = Copies()

    def lens(state: State) -> dict[str, Any]:
        return {"lens": state.attn_metadata["layers.0"].seq_lens}

    found = findings(lambda: runner.check(persistent=lens, vary=[]))
    assert found["not-shared"] == ["persistent['lens']"]


def test_shared_memory_of_persistent_inputs_is_right_and_needs_no_word() -> None:
    runner = Runner()
    report = runner.check(persistent=None, vary=[]).report
    assert report.not_checked["not-shared"]


def test_an_input_that_only_the_warmup_reads_is_found() -> None:
    runner = Runner()

    def create(desc: Any, warmup: bool) -> Any:
        def forward(mode: Any) -> Any:
            return runner.x * (runner.lens[:, None] if warmup else torch.ones(4, 1))

        return forward, {}

    with pytest.raises(CapturePairError) as caught:
        runner.check(create)
    found = [one.what for one in caught.value.findings if one.check == "not-shared"]
    assert any("was read in the warm-up and is not used in the graph" in what for what in found)


def test_inputs_that_are_not_given_or_not_read_are_listed() -> None:
    runner = Runner()
    report = runner.check(persistent=None, vary=[]).report
    assert report.not_checked["not-shared"] == "no persistent inputs were given (persistent=)"
    unused = torch.ones(2)

    def create(desc: Any, warmup: bool) -> Any:
        return (lambda: runner.x * 2), {}

    report = runner.check(create, persistent={"x": runner.x, "unused": unused}, vary=[]).report
    assert report.not_checked["not-shared (persistent['unused'])"] == "neither pass reads it"
