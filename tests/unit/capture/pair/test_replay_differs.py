"""The check replay-differs: replays after each change are compared with new states."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import CapturePairError  # noqa: E402
from pytest_cudafork.capture.story.findings import source_of  # noqa: E402
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


class Keeper:
    """A layer that keeps a number of the first batch."""

    def __init__(self) -> None:
        self.longest: Any = None
        self.calls = 0

    def keep(self, lens: Any) -> float:
        if self.longest is None:
            self.longest = float(lens.max())  # the number
        return float(self.longest)

    def count(self, lens: Any) -> float:
        self.calls += 1
        return 2.0


def wrapped(fn: Any) -> Any:
    return lambda: fn()


@pytest.mark.parametrize("how", ["keep", "count"])
def test_a_number_that_the_forward_keeps_is_held_against_code_that_begins_anew(how: str) -> None:
    runner, layer = Runner(), Keeper()

    def create(desc: Any, warmup: bool) -> Any:
        state = {"lens": runner.lens}

        def forward() -> Any:
            return runner.x * getattr(layer, how)(state["lens"]) + state["lens"][:, None]

        return wrapped(forward), state

    def check() -> None:
        runner.check(create, vary=[lambda: runner.lens.copy_(torch.tensor([3, 5, 7, 9]))])

    if how == "count":
        check()
        assert layer.calls > 3
        return
    with pytest.raises(CapturePairError) as caught:
        check()
    (found,) = caught.value.findings
    assert (found.check, found.path) == ("lazy-init-skipped", "forward_fn.fn.layer.longest")
    assert "(None -> 8.0)" in found.what
    assert "begins anew" in found.what
    assert source_of(found.where).endswith("# the number")
    assert layer.longest == 8.0, "the object is as the forward left it"


def test_code_that_goes_on_by_intention_is_not_held_against_code_that_begins_anew() -> None:
    """A first step that differs from all others, and one that refuses to be made twice."""
    runner, first = Runner(), [True]

    def create(desc: Any, warmup: bool) -> Any:
        def forward() -> Any:
            if first:
                first.clear()
                return runner.x * 0.0
            return runner.x * runner.lens[:, None]

        return forward, {"lens": runner.lens}

    runner.check(create)
    made: list[Any] = []

    class Once:
        ready = False

    once = Once()

    def refuses(desc: Any, warmup: bool) -> Any:
        def forward() -> Any:
            if not once.ready:
                if made:
                    raise RuntimeError("a group cannot be made twice")
                made.append(1)
                once.ready = True
            return runner.x * runner.lens[:, None]

        return forward, {"lens": runner.lens}

    report = runner.check(refuses, shared=[made]).report
    assert report.not_checked == {
        "lazy-init-skipped (begun anew)": "RuntimeError: a group cannot be made twice"
    }
