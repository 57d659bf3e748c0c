"""Weak references to tensors, while torch swaps them."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork import GraphCaptureError, assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.interface.weak_tensors import (  # noqa: E402
    WeakTensor,
    swaps_let_pass,
)
from tests.support.captures import looking  # noqa: E402


def test_it_keeps_nothing_alive() -> None:
    tensor = torch.ones(2)
    weak = WeakTensor(tensor)
    assert weak() is tensor
    del tensor
    assert weak() is None


def test_tensors_are_swapped_although_ours_refer_to_them() -> None:
    one, other = torch.zeros(2), torch.ones(3)
    weak, also = WeakTensor(one), WeakTensor(one)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(one, other)
    with swaps_let_pass():
        torch.utils.swap_tensors(one, other)
    assert one.tolist() == [1, 1, 1]
    assert weak() is one
    assert also() is one


def test_a_reference_of_somebody_else_is_still_refused_and_ours_stay() -> None:
    one, other = torch.zeros(2), torch.ones(2)
    weak, foreign = WeakTensor(one), weakref.ref(other)
    with swaps_let_pass(), pytest.raises(RuntimeError, match="t2"):
        torch.utils.swap_tensors(one, t2=other)
    assert weak() is one
    assert foreign() is other


def test_a_swap_of_what_a_graph_reads_is_told_and_not_refused() -> None:
    with looking() as look:
        weight, new = torch.zeros(2), torch.ones(2)
        captured = look.capture(lambda: weight + 1)
        torch.utils.swap_tensors(weight, new)
        captured.replay()
        (error,) = look.watching.take()["errors"]
    assert error["kind"] == "moved-input"


def test_a_vary_may_swap_what_eager_code_reads() -> None:
    weight, x, new = torch.zeros(2), torch.ones(2), torch.ones(2)
    with pytest.raises(GraphCaptureError) as failed:
        assert_replay_equals_eager(
            lambda x: x + weight,
            [x],
            vary=[lambda: torch.utils.swap_tensors(weight, new)],
            backend="software",
        )
    assert "weakref" not in str(failed.value)
