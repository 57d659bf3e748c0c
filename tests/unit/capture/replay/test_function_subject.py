"""A function as it is compared: captured or replayed by its own graph, and run eagerly."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.replay.function_subject import FunctionSubject  # noqa: E402
from pytest_cudafork.capture.replay.stimulus import Stimulus  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402
from pytest_cudafork.errors import CudaForkWarning, GraphUsageError  # noqa: E402
from tests.support.capture import iter_nothing  # noqa: E402


def subject(fn: Any, inputs: Any, eager: Any = None, replay: Any = None) -> FunctionSubject:
    made = FunctionSubject(fn, inputs, eager, replay, CheckLog())
    if replay is None:
        assert made.capture(SoftwareBackend(), None)
    return made


def test_eager_code_and_replays_of_a_list_and_of_a_dict() -> None:
    x = torch.ones(2)
    for inputs in ([x], {"x": x}):
        made = subject(lambda x: x * 3, inputs)
        assert made.replay().tolist() == made.eager().tolist() == [3, 3]
        assert made.outputs().tolist() == [3, 3]
        assert [id(one) for one in made.inputs().values()] == [id(x)]
        assert made.is_own_reference


def test_another_reference_is_called_with_the_inputs_or_without() -> None:
    x = torch.ones(2)
    assert subject(lambda x: x * 3, [x], eager=lambda x: x * 4).eager().tolist() == [4, 4]
    assert subject(lambda x: x * 3, [x], eager=lambda: x * 5).eager().tolist() == [5, 5]
    assert not subject(lambda x: x * 3, [x], eager=lambda: x * 5).is_own_reference


def test_a_graph_of_the_users_own_is_replayed() -> None:
    x = torch.ones(2)
    made = subject(lambda x: x, [x], replay=lambda: x * 2)
    assert made.outputs() is None
    assert made.replay().tolist() == [2, 2]
    assert made.outputs().tolist() == [2, 2]
    with pytest.raises(GraphUsageError, match="replay returned"):
        subject(lambda x: x, [x], replay=lambda: iter_nothing()).replay()


def test_memory_that_is_written_stands_for_results() -> None:
    x, out = torch.ones(2), torch.zeros(2)

    def fn(x: Any) -> None:
        torch.mul(x, 2, out=out)

    made = subject(fn, [x])
    assert list(made.written) == list(made.scratch) == ["out"]
    made.replay()
    assert made.outputs()["out"].tolist() == [2, 2]
    assert made.eager()["out"].tolist() == [2, 2]
    assert "out" in made.reachable()


def test_a_capture_that_fails_leaves_no_graph() -> None:
    made = FunctionSubject(lambda x: x.item(), [torch.ones(1)], None, None, CheckLog())
    assert not made.capture(SoftwareBackend(), None)
    assert made.graph is None


def test_memory_that_moves_is_told_of_inputs_at_once_and_of_others_if_a_replay_was_wrong() -> None:
    inputs, weight = [torch.ones(2)], {"w": torch.ones(2)}
    log = CheckLog()
    made = FunctionSubject(lambda x: x * weight["w"], inputs, None, None, log)
    made.capture(SoftwareBackend(), None)
    old = inputs[0], weight["w"]
    weight["w"] = torch.ones(2)
    made.after_change(Stimulus("a change", lambda: None))
    made.report_moved()
    assert log.findings == []
    assert made.moved() == {"weight['w']"}
    inputs[0] = torch.ones(2)
    made.after_change(Stimulus("another", lambda: None))
    assert [found.path for found in log.findings] == ["inputs[0]"]
    made.report_moved()
    assert [found.path for found in log.findings] == ["inputs[0]", "weight['w']"]
    del old


def test_values_of_python_that_have_changed_are_clues() -> None:
    factors = {"a": 2}
    made = subject(lambda x: x * factors["a"], [torch.ones(2)])
    assert made.clues() == ""
    factors["a"] = 3
    assert made.clues().endswith("factors['a'] (2 -> 3)")


def test_generators_are_reached() -> None:
    generator = torch.Generator()
    made = FunctionSubject(lambda x: (x, generator), [torch.ones(1)], None, None, CheckLog())
    assert made.reach().generators == [generator]


def test_work_that_only_the_first_call_does_is_told() -> None:
    x, kept = torch.ones(2), {}

    def fn(x: Any) -> Any:
        if "scale" not in kept:
            kept["scale"] = torch.exp(x)
        return kept["scale"] * 2

    with pytest.warns(CudaForkWarning, match=r"computed something from inputs\[0\]"):
        subject(fn, [x])


@pytest.mark.parametrize("keeps", [True, False])
def test_a_number_of_the_first_call_is_warned_of(keeps: bool) -> None:
    """Eager code has it as well; whether that is right, as with a calibration, is not known."""
    kept: list[float] = []
    lens = torch.tensor([1.0, 2.0])

    def fn(x: Any) -> Any:
        if not kept:
            kept.append(float(lens.max()) if keeps else 2.0)
        return x * kept[0]

    def run() -> Any:
        return assert_replay_equals_eager(
            fn, [torch.ones(2)], vary=[lambda: lens.fill_(5.0)], backend="software"
        )

    lens.copy_(torch.tensor([1.0, 2.0]))
    if not keeps:
        assert not any("begins anew" in note for note in run().notes)
        return
    with pytest.warns(CudaForkWarning, match=r"begins anew, output: 2 of 2 elements differ"):
        report = run()
    assert any("give eager=" in note for note in report.notes)
    assert kept == [2.0], "the object is as the function left it"
