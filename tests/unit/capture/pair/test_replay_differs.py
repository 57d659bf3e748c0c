"""The check replay-differs: replays after each change are compared with new states."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.capture_pair import Runner, findings  # noqa: E402


def test_a_value_of_python_that_the_graph_keeps_is_found() -> None:
    class Frozen(Runner):
        factor = 2.0

        def create(self, desc: Any, warmup: bool) -> Any:
            forward, state = super().create(desc, warmup)
            return (lambda mode: forward(mode) * self.factor), state

    runner = Frozen()

    def change() -> None:
        Frozen.factor = 3.0

    found = findings(lambda: runner.check(vary=[change]))
    assert found["replay-differs"] == ["output"]


def test_the_names_of_the_changes_stand_in_the_notes_and_findings() -> None:
    report = Runner().check(poison=False).report
    assert "replay-differs" in report.checks
    assert "moved-input" in report.checks
    assert "rng-frozen" not in report.checks


def test_random_numbers_that_repeat_are_found_where_they_were_to_be_checked() -> None:
    runner = Runner()
    noise = torch.randn(4, 1)

    def create(desc: Any, warmup: bool) -> Any:
        forward, state = runner.create(desc, warmup)
        return (lambda mode: forward(mode) + noise), state

    assert findings(lambda: runner.check(create, rng=True)) == {"rng-frozen": ["output"]}
    assert "rng-frozen" not in runner.check(create).report.checks


def test_a_change_that_takes_the_state_gets_it() -> None:
    runner, seen = Runner(), []

    def change(state: Any) -> None:
        seen.append(state)
        runner.slots.fill_(2)
        state.attn_metadata["layers.0"].seq_lens.fill_(2)

    runner.check(vary=[change])
    assert all("layers.0" in state.attn_metadata for state in seen)
    assert len(seen) > 1, "the states of eager runs, too"
