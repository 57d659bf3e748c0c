"""What is replayed, and how a step that cannot be is told."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

flex = pytest.importorskip("torch.nn.attention.flex_attention")


from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.software.memory import Memory  # noqa: E402
from pytest_cudafork.capture.software.tape import (  # noqa: E402
    Place,
    Tape,
    UnlikeCaptureError,
    Wrapped,
    resolve,
    step_of,
)
from pytest_cudafork.errors import ReplayFailedError  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 130])
@pytest.mark.parametrize("trained", [False, True])
def test_lstm_replays_as_eager_code_outside_no_grad(size: int, trained: bool) -> None:
    module = torch.nn.LSTM(size, size, 2, bidirectional=True).requires_grad_(trained)
    other, x = copy.deepcopy(module), torch.randn(3, 2, size)

    def step(module: Any) -> Any:
        out, state = module(x)
        if trained:
            return out.detach(), torch.autograd.grad(out.sum(), [*module.parameters()])
        return out, state

    backend = SoftwareBackend()
    with torch.no_grad():  # whose answer is not that of the next capture
        backend.capture(lambda: module(x))
    graph = backend.capture(lambda: step(module))
    for _ in range(2):
        x.normal_()
        graph.replay()
        expected = step(other)
        assert torch.equal(graph.recording.result[0], expected[0])
        for got, want in zip(graph.recording.result[1], expected[1], strict=True):
            assert torch.allclose(got, want, atol=1e-5)


X = torch.randn(2, 4, 6, requires_grad=True)


@pytest.mark.parametrize("error", [UnlikeCaptureError("gave None"), TypeError("a"), AttributeError])
def test_what_the_tape_cannot_do_is_not_blamed_on_the_code(error: Any) -> None:
    graph = SoftwareBackend().capture(lambda: X.detach() + 1)
    assert graph._tape is not None

    def broken() -> None:
        raise error

    graph._tape._steps[0] = (broken, graph._tape._steps[0][1])
    with pytest.raises(ReplayFailedError, match="the software graph cannot replay aten::add") as it:
        graph.replay()
    assert it.value.finding.check == "not-judged"
    assert "limit" in it.value.finding.why
    assert Path(__file__).name in it.value.finding.where


def place(tensor: Any) -> Place:
    """A place of the graph's own memory, found."""
    memory = Memory(tensor.untyped_storage(), tensor, owned=True)
    memory.keep = tensor.untyped_storage()
    made = Place(tensor, memory)
    made.find()
    return made


def test_a_place_is_found_with_its_shape_and_bits() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(place(x.t()[1:]).tensor, x.t()[1:])
    z = torch.ones(2, dtype=torch.complex64) * 1j
    assert torch.equal(place(z.conj()).tensor, z.conj())
    assert torch.equal(place(z.conj().imag).tensor, z.conj().imag)


def test_results_go_to_the_places_of_the_capture() -> None:
    one, two = torch.zeros(2), torch.zeros(2)
    step_of(lambda x: x + 1, [place(torch.ones(2))], {}, place(one))()
    assert one.tolist() == [2, 2]
    places = [place(one), place(two)]
    y = place(torch.full((2,), 5.0))
    step_of(lambda x, *, y: (x, y), [place(torch.ones(2))], {"y": y}, places)()
    assert (one.tolist(), two.tolist()) == ([1, 1], [5, 5])
    step_of(one.fill_, [7], {}, None)()
    assert one.tolist() == [7, 7]


def test_a_step_runs_with_gradients_where_it_did_in_the_capture() -> None:
    seen = []

    def op() -> Any:
        seen.append(torch.is_grad_enabled())
        return [torch.ones(2)]

    step = step_of(op, [], {}, [place(torch.zeros(2))])
    with torch.no_grad():
        step()
    assert seen == [True]


@pytest.mark.parametrize(
    ("result", "fresh", "words", "error"),
    [
        (None, 0, "gave NoneType instead of a tensor", UnlikeCaptureError),
        (torch.ones(3), 0, r"shape \[3\], at the capture it had \[2\]", RuntimeError),
        ([], [0], "gave other results than the 1", UnlikeCaptureError),
    ],
)
def test_a_result_that_is_unlike_the_captures(
    result: Any, fresh: Any, words: str, error: type[Exception]
) -> None:
    where = place(torch.zeros(2))
    with pytest.raises(error, match=words):
        step_of(lambda: result, [], {}, [where] if fresh else where)()


def test_arguments_in_descriptors_get_their_tensors() -> None:
    descriptor = SimpleNamespace(base=None, shape=[2])
    x = torch.ones(2)
    made = resolve([{"d": Wrapped(descriptor, place(x))}, 3])
    assert made[0]["d"].base.data_ptr() == x.data_ptr()
    assert made[0]["d"] is not descriptor
    assert made[1] == 3


def test_memory_that_is_gone_is_told_with_the_work_that_uses_it() -> None:
    held = [torch.ones(2)]
    graph = SoftwareBackend().capture(lambda: held[0] * 2)
    graph.replay()
    held.clear()
    with pytest.raises(ReplayFailedError, match="reads memory that was freed") as caught:
        graph.replay()
    assert caught.value.finding.check == "freed-memory"


def test_a_tape_that_is_cleared_does_nothing() -> None:
    tape, x = Tape(), torch.ones(2)
    memory = Memory(x.untyped_storage(), x, owned=False)
    assert tape.place(x, memory) is tape.place(x, memory)
    tape.add(lambda: x.add_(1), -1)
    assert (len(tape), len(tape.outside())) == (1, 1)
    tape.clear()
    tape.replay(())
    assert (len(tape), x.tolist()) == (0, [1, 1])
