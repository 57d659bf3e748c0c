"""The check not-shared: persistent inputs lie in the same memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

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
