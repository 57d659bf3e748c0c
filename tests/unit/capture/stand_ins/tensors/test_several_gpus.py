"""``DataParallel`` on tensors that stand for those of GPUs: one GPU, and several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.stand_ins.tensors import several_gpus  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.cuda_tensors import CudaTensors  # noqa: E402
from pytest_cudafork.compat.torch_graphs.functions import BETWEEN_GPUS, COPY_STREAMS  # noqa: E402
from pytest_cudafork.observe.base.undo import UndoStack  # noqa: E402


@pytest.fixture(autouse=True)
def in_place() -> Iterator[None]:
    before = vars(COPY_STREAMS[0])[COPY_STREAMS[1]]
    with UndoStack() as undo, CudaTensors():
        several_gpus.put_in_place(undo)
        yield
    assert vars(COPY_STREAMS[0])[COPY_STREAMS[1]] is before


def places(tensors: Any) -> list[str]:
    return [str(each.device) for each in tensors]


def test_a_batch_is_cut_and_put_together_again() -> None:
    batch = torch.arange(6.0).view(3, 2)
    pieces = BETWEEN_GPUS._scatter(batch, [0, 1], None, 0, None)
    assert places(pieces) == ["cuda:0", "cuda:1"]
    assert [len(each) for each in pieces] == [2, 1]
    again = BETWEEN_GPUS._gather(pieces, 0, 1)
    assert places([again]) == ["cuda:1"]
    assert again.tolist() == batch.tolist()
    assert not BETWEEN_GPUS._gather(pieces, 0, -1).is_cuda
    assert [each.shape[1] for each in BETWEEN_GPUS._scatter(batch, [0, 1], [1, 1], 1, None)] == [
        1,
        1,
    ]


def test_what_lies_there_already_is_not_copied() -> None:
    there = torch.ones(2, device="cuda")
    (piece,) = BETWEEN_GPUS._scatter(there, [0], None, 0, None)
    assert piece.data_ptr() == there.data_ptr()
    same, other = BETWEEN_GPUS._broadcast(there, [0, 1])
    assert same.data_ptr() == there.data_ptr() != other.data_ptr()
    assert places(each for (each,) in BETWEEN_GPUS._broadcast_coalesced([there], [1, 0], 1)) == [
        "cuda:1",
        "cuda:0",
    ]
