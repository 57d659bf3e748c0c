"""Saved and loaded tensors lie where they lay, or where they are asked for."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.capturing.graphs import CUDAGraph, graph  # noqa: E402
from pytest_cudafork.errors import CaptureFailedError  # noqa: E402

pytestmark = pytest.mark.usefixtures("everywhere")


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, ["cuda:1", "cpu"]),
        ("cpu", ["cpu", "cpu"]),
        ("cuda", ["cuda:0", "cuda:0"]),
        (torch.device("cuda", 2), ["cuda:2", "cuda:2"]),
        ({"cuda:1": "cuda:0"}, ["cuda:0", "cpu"]),
        (lambda storage, place: storage, ["cpu", "cpu"]),
        (lambda storage, place: storage.cuda(), ["cuda:0", "cuda:0"]),
        (lambda storage, place: storage.cuda(1), ["cuda:1", "cuda:1"]),
        (lambda storage, place: storage.cuda("cuda:1").cuda(1), ["cuda:1", "cuda:1"]),
    ],
)
def test_what_is_loaded_lies_where_it_is_asked_for(place: Any, expected: list[str]) -> None:
    file = saved([torch.ones(2, device="cuda:1"), torch.zeros(2)])
    loaded = torch.load(file, map_location=place)
    assert [str(each.device) for each in loaded] == expected
    assert [each.tolist() for each in loaded] == [[1, 1], [0, 0]]


def test_pickled_tensors_and_modules_lie_where_they_lay() -> None:
    module = torch.nn.Linear(2, 2, device="cuda")
    made = pickle.loads(pickle.dumps([module, torch.ones(2, device="cuda"), torch.ones(2)]))
    assert [made[0].weight.is_cuda, made[1].is_cuda, made[2].is_cuda] == [True, True, False]


def test_a_capture_refuses_to_save_what_lies_on_the_device() -> None:
    there, host = torch.ones(2, device="cuda"), torch.ones(2)
    with graph(CUDAGraph()):
        assert torch.equal(pickle.loads(pickle.dumps(host)), host)
    with pytest.raises(CaptureFailedError, match="saving or pickling"), graph(CUDAGraph()):
        pickle.dumps(there)


def test_without_stand_ins_nothing_is_loaded_to_a_gpu() -> None:
    from pytest_cudafork.capture.stand_ins.tensors.saved_tensors import put_in_place
    from pytest_cudafork.compat.torch_graphs.tensors import places_of_saved
    from pytest_cudafork.observe.base.undo import UndoStack

    count = len(places_of_saved())
    with UndoStack() as undo:
        put_in_place(undo)
        _, _, put = places_of_saved()[0]
        assert put(torch.ones(1).untyped_storage(), "cpu") is None
        with torch.overrides._pop_mode_temporarily():
            assert put(torch.ones(1).untyped_storage(), "cuda:0") is None
    assert len(places_of_saved()) == count
