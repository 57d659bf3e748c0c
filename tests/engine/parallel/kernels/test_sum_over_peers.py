"""The kernel that sums over ranks, in Triton's interpreter, on two and more processes at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sample_engine.parallel.peer_memory import PeerMemory
from tests.engine.support.model_kernels import TOLERANCE, random_tensor, relative_error
from tests.engine.support.peers import on_peers

pytestmark = pytest.mark.usefixtures("interpreter")

ROOM, COLUMNS = 9, 40
TOKENS = (1, ROOM, 0, 5)  # of sums, one after the other


def inboxes_of(rank: int, memory: PeerMemory, dtype: torch.dtype, processors: int) -> Any:
    from sample_engine.parallel.kernels.sum_over_peers import Inboxes

    size = len(memory.addresses)
    inbox = 2 * (size - 1) * ROOM * COLUMNS * dtype.itemsize
    pointers = torch.tensor(memory.addresses)
    count = torch.zeros(2, dtype=torch.int64)
    return Inboxes(rank, size, COLUMNS, ROOM, pointers, pointers + inbox, count, processors)


def check(rank: int, memory: PeerMemory, dtype: torch.dtype, processors: int) -> int:
    """Sum up, add and norm on one rank; how many sums there were."""
    from sample_engine.parallel.kernels.sum_over_peers import sum_over_peers

    inboxes = inboxes_of(rank, memory, dtype, processors)
    weight = random_tensor(COLUMNS, dtype=dtype, seed=1)
    for seed, count in enumerate(TOKENS):
        terms = random_tensor(inboxes.size, count, COLUMNS, dtype=dtype, seed=seed)
        residual = random_tensor(count, 2, COLUMNS, dtype=dtype, seed=9)[:, 1]
        exact = terms[0].float()
        for each in terms[1:]:
            exact = exact + each.float()
        expected = exact.to(dtype)

        total, same = sum_over_peers(inboxes, terms[rank])
        assert torch.equal(total, expected)
        assert same is total
        total, _ = sum_over_peers(inboxes, terms[rank], residual)
        assert torch.equal(total, expected + residual)
        total, normed = sum_over_peers(inboxes, terms[rank], residual, (weight, 1e-3))
        assert torch.equal(total, expected + residual)
        if count:
            wide = total.double()
            scale = (wide.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()
            assert relative_error(normed, wide / scale * weight.double()) < TOLERANCE[dtype]
        total, normed = sum_over_peers(inboxes, terms[rank], None, (weight, 1e-3))
        assert torch.equal(total, expected)
        assert not count or not torch.equal(normed, total)
    return int(inboxes.count[0])


@pytest.mark.parametrize(
    ("ranks", "dtype", "processors"),
    [
        (2, torch.float32, 100),
        (2, torch.float16, 1),  # more groups than programs, so each of these does several
        (3, torch.float32, 1),
    ],
)
def test_all_ranks_get_the_same_sum_again_and_again(
    ranks: int, dtype: torch.dtype, processors: int
) -> None:
    sums = on_peers(ranks, 1 << 15, lambda rank, memory: check(rank, memory, dtype, processors))
    assert sums == [4 * (len(TOKENS) - 1)] * ranks  # a sum of no tokens is none


def test_what_does_not_fit_is_refused() -> None:
    from sample_engine.parallel.kernels.sum_over_peers import sum_over_peers

    memory = PeerMemory(torch.zeros(1, dtype=torch.uint8), (0, 0), None)
    inboxes = inboxes_of(0, memory, torch.float32, 1)
    with pytest.raises(AssertionError, match="no room for so many tokens"):
        sum_over_peers(inboxes, torch.zeros(ROOM + 1, COLUMNS))
    with pytest.raises(AssertionError, match="tokens of one size"):
        sum_over_peers(inboxes, torch.zeros(1, COLUMNS + 1))
