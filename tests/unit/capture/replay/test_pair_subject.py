"""The captured forward of a pair, and eager runs on new states."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.replay.factory import Factory  # noqa: E402
from pytest_cudafork.capture.replay.pair_subject import PairSubject  # noqa: E402
from pytest_cudafork.capture.replay.passes import Passes  # noqa: E402
from pytest_cudafork.capture.replay.stimulus import Stimulus  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.state.aliasing import Allowed  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402
from tests.support.capture import Desc  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


def subject(create: Any, persistent: Any = None, outputs: Any = None) -> PairSubject:
    log = CheckLog()
    factory = Factory(create, Desc(4))
    passes = Passes(factory, SoftwareBackend(), "FULL", persistent, Allowed(()), log)
    assert passes.run()
    return PairSubject(passes, outputs, log)


def test_a_replay_and_an_eager_run_on_a_new_state_agree() -> None:
    runner = Runner()
    made = subject(runner.create, {"lens": runner.lens})
    calls = len(runner.states)
    runner.lens.fill_(5)
    assert torch.allclose(made.replay(), made.eager())
    assert len(runner.states) == calls + 1
    assert list(made.inputs()) == ["persistent['lens']"]
    assert made.moved() == set()


def test_outputs_may_be_given() -> None:
    runner = Runner()
    buffer = torch.zeros(1)
    made = subject(runner.create, outputs=lambda: buffer)
    assert made.replay() is made.outputs() is made.eager() is buffer


def test_memory_that_the_forward_writes_stands_for_results() -> None:
    x, out = torch.ones(2), torch.zeros(2)

    def create(desc: Any, warmup: bool) -> Any:
        def forward() -> None:
            out.copy_(x * 2)

        return forward, {}

    made = subject(create, {"x": x})
    assert list(made.written) == ["out"]
    assert made.replay()["out"].tolist() == made.eager()["out"].tolist() == [2, 2]
    assert "out" in made.reach().tensors


def test_what_forward_factory_and_all_states_hold_is_reached() -> None:
    runner = Runner()
    reached = subject(runner.create, {"lens": runner.lens}).reachable()
    places = {one.untyped_storage().data_ptr() for one in reached.values()}
    assert runner.x.untyped_storage().data_ptr() in places
    assert runner.slots.untyped_storage().data_ptr() in places, "both states hold it"
    assert runner.lens.untyped_storage().data_ptr() not in places, "an input"


def test_a_change_gets_the_captured_state_and_each_new_one() -> None:
    runner, seen = Runner(), list[Any]()
    made = subject(runner.create)
    made.varying(seen.append)()
    made.eager()
    assert len(seen) == 2
    assert seen[0] is not seen[1]
    made.varying(lambda: None)()
    made.varying(None)()
    made.eager()
    assert len(seen) == 2


def test_values_of_python_that_have_changed_are_clues() -> None:
    factor = [2]
    x = torch.ones(2)
    made = subject(lambda desc, warmup: ((lambda: x * factor[0]), {}))
    assert made.clues() == ""
    factor[0] = 3
    assert "[2] -> [3]" in made.clues()


def test_an_input_that_moves_is_a_finding() -> None:
    inputs = {"x": torch.ones(2)}
    made = subject(lambda desc, warmup: ((lambda: inputs["x"] * 2), {}), lambda state: inputs)
    made.after_change(Stimulus("nothing", lambda: None))
    old, inputs["x"] = inputs["x"], torch.ones(2)
    made.after_change(Stimulus("a change", lambda: None))
    (found,) = made._log.findings
    assert (found.check, found.path) == ("moved-input", "persistent['x']")
    assert "after a change" in found.what
    del old
