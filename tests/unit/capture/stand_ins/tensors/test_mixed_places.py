"""Operators that refuse tensors of the host beside those of a GPU, and those that take both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.stand_ins.capturing.graphs import CUDAGraph, graph  # noqa: E402
from pytest_cudafork.capture.stand_ins.tensors.mixed_places import check_places  # noqa: E402

pytestmark = pytest.mark.usefixtures("mode")


@pytest.mark.parametrize(
    "work",
    [
        lambda there, host: there + host,
        lambda there, host: host * there,
        lambda there, host: there.add_(host),
        lambda there, host: torch.clamp(there, min=host[0]),
        lambda there, host: there.clamp_(max=host.sum()),
        lambda there, host: there.__iadd__(host),
        lambda there, host: torch.matmul(there, host),
        lambda there, host: there == host,
        lambda there, host: torch.equal(there, host),
        lambda there, host: torch.allclose(there, host),
        lambda there, host: torch.cat([there, host]),
        lambda there, host: torch.where(host > 0, there, 0),
        lambda there, host: there.index_copy_(0, torch.tensor([1]), there[:1]),
        lambda there, host: there.index_select(0, torch.tensor([1])),
        lambda there, host: torch.nn.functional.embedding(torch.tensor([1]), there[:, None]),
        lambda there, host: torch.nn.functional.linear(there, host[None]),
    ],
)
def test_tensors_of_both_kinds_are_refused(work: Callable[[Any, Any], Any]) -> None:
    there, host = torch.ones(4, device="cuda"), torch.ones(4)
    with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
        work(there, host)
    with pytest.raises(RuntimeError, match="cuda:0 and cpu"), graph(CUDAGraph()):
        work(there, host)


def test_single_numbers_and_what_asks_for_shapes_and_copies_may_lie_on_the_host() -> None:
    there, host, number = torch.ones(4, device="cuda"), torch.ones(4), torch.tensor(2.0)
    assert (there * number + host[0]).tolist() == [3] * 4
    assert torch.where(there > 0, number, there).tolist() == [2] * 4
    assert there.expand_as(host).is_cuda
    there.copy_(host * 3)
    assert there[torch.tensor([True, False, True, False])].tolist() == [3, 3]
    torch.testing.assert_close(there.cpu(), host * 3)
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(there, host * 3)
    assert_replay_equals_eager(lambda x: x + 1, [there], backend="software")


def test_unknown_places_are_not_judged() -> None:
    there = torch.ones(2, device="cuda")
    check_places(torch.add, (there, torch.Tensor([1.0, 1.0])), 0)
    check_places(object(), (there, torch.ones(2)), 0)
