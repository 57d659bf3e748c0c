"""Sums over peer memory: what they take, and how they are tried out before they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from sample_engine.errors import RankLostError
from sample_engine.parallel.peer_memory import PeerMemory
from tests.engine.support.peers import on_peers

pytestmark = pytest.mark.usefixtures("interpreter")

COLUMNS = 8


def sums_of(rank: int, memory: PeerMemory) -> Any:
    """The sums of a rank of two; imported late, as Triton's interpreter has to be asked for."""
    from sample_engine.parallel.peer_sums import PeerSums, inbox_sizes

    room, inbox, _ = inbox_sizes(2, 5, COLUMNS * 4)
    return PeerSums(memory, rank, room, inbox, COLUMNS, torch.float32)


def of_one_process() -> Any:
    return sums_of(0, PeerMemory(torch.zeros(1, dtype=torch.uint8), (0, 0), None))


def test_a_rank_takes_hidden_states_of_its_model_alone() -> None:
    sums = of_one_process()
    assert sums.most_tokens == 5
    fits = torch.zeros(5, COLUMNS)
    assert sums.takes(fits)
    assert sums.takes(fits, fits[:2])
    for other in (
        torch.zeros(6, COLUMNS),
        torch.zeros(5, COLUMNS + 1),
        torch.zeros(5, COLUMNS, dtype=torch.float16),
        torch.zeros(COLUMNS),
        torch.zeros(5, 2 * COLUMNS)[:, ::2],
    ):
        assert not sums.takes(other)
        assert not sums.takes(fits, other)


@pytest.mark.parametrize(
    ("ranks", "tokens", "expected"),
    [
        (2, 100, (100, 2 * 100 * 64, 2 * 100 * 8)),
        (2, 1 << 30, (1 << 20, 2 << 26, 2 << 23)),  # 64 MiB of tokens
        (4, 100, (64, 2 * 3 * 64 * 64, 4 * 64 * 8)),
        (4, 3, (3, 2 * 3 * 3 * 64, 4 * 3 * 8)),
    ],
)
def test_the_room_of_inboxes(ranks: int, tokens: int, expected: tuple[int, int, int]) -> None:
    from sample_engine.parallel.peer_sums import inbox_sizes

    assert inbox_sizes(ranks, tokens, 64) == expected


def tried(rank: int, memory: PeerMemory) -> list[bool]:
    """Whether sums agree with those of a rank that is told them, and with others."""
    sums = sums_of(rank, memory)

    def told(wrong: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def summed(term: torch.Tensor) -> torch.Tensor:
            index = torch.arange(term.numel()).view(term.shape)
            both = [((index + 3 * each) % 128).float() for each in range(2)]
            assert torch.equal(term, both[rank])
            return both[0] + both[1] + wrong

        return summed

    return [sums.agree_with(told(0)), sums.agree_with(told(1)), sums.agree_with(told(0))]


def test_sums_are_tried_out_on_all_ranks() -> None:
    assert on_peers(2, 1 << 14, tried) == [[True, False, True]] * 2


def test_a_sum_that_does_not_end_is_an_error_that_says_what_to_do() -> None:
    from sample_engine.parallel import peer_sums

    sums = of_one_process()
    sums._memory = mock.Mock(own=mock.Mock(device=torch.device("cuda", 0)))
    event = mock.Mock(query=mock.Mock(return_value=False))
    with (
        mock.patch.object(torch.cuda, "Event", return_value=event),
        mock.patch.object(peer_sums, "_TRIAL_SECONDS", 0.0),
        pytest.raises(RankLostError, match=r"Rank 0 of 2: .*disable_custom_all_reduce=True"),
    ):
        sums._wait()
    event.query.return_value = True
    with mock.patch.object(torch.cuda, "Event", return_value=event):
        sums._wait()
