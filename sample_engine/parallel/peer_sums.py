"""Sums over the ranks of one host by a kernel of our own: one launch, with what follows a sum.

They take tensors of one dtype with rows of one size, which a model's hidden states are. For what
they do not take there is ``torch.distributed``.

Shapes::

    T  tokens of a sum
    C  numbers of each
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from sample_engine.errors import RankLostError
from sample_engine.parallel.kernels.sum_over_peers import Inboxes, sum_over_peers
from sample_engine.parallel.peer_memory import PeerMemory

__all__ = ["PeerSums", "inbox_sizes"]

_FEW = 64  # tokens
_MOST_BYTES = 64 << 20  # of the tokens of a sum
_OVERLAPPING = (9, 0)  # the capability from which kernels may overlap
_FLAG = 8  # bytes
_TRIAL_SECONDS = 60.0
_EXACT = 256  # whole numbers up to it are exact in each dtype


def inbox_sizes(
    size: int,  # ranks
    most_tokens: int,
    row_bytes: int,
) -> tuple[int, int, int]:
    """The most tokens of a sum, and the bytes of the inbox and of the flags of each rank.

    Each rank sends all of its terms to each other one. Between more than two ranks a sum of many
    tokens in rounds carries less, and is left to others.
    """
    room = min(most_tokens, _MOST_BYTES // row_bytes if size == 2 else _FEW)
    return room, 2 * (size - 1) * room * row_bytes, size * room * _FLAG


class PeerSums:
    """Sums of ``[T, C]``, T up to ``most_tokens``, over memory that all ranks see."""

    def __init__(
        self,
        memory: PeerMemory,
        rank: int,
        room: int,  # as of inbox_sizes, the next one too
        inbox_bytes: int,
        columns: int,
        dtype: torch.dtype,
    ) -> None:
        device = memory.own.device
        on_gpu = device.type == "cuda"
        self._memory = memory
        self._dtype = dtype
        self._overlap = on_gpu and torch.cuda.get_device_capability(device) >= _OVERLAPPING
        pointers = torch.tensor(memory.addresses, dtype=torch.int64, device=device)
        self.most_tokens = room
        self._inboxes = Inboxes(
            rank,
            len(memory.addresses),
            columns,
            room,
            pointers,
            pointers + inbox_bytes,
            torch.zeros(2, dtype=torch.int64, device=device),
            torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1,
        )

    def takes(self, *tensors: torch.Tensor) -> bool:
        """Whether tensors can be summed here, and added. The same on all ranks."""
        return all(
            each.dtype == self._dtype
            and each.dim() == 2
            and each.shape[1] == self._inboxes.columns
            and each.shape[0] <= self.most_tokens
            and each.is_contiguous()
            for each in tensors
        )

    def of(
        self,
        term: torch.Tensor,  # [T, C], this rank's
        residual: torch.Tensor | None,  # [T, C]
        norm: tuple[torch.Tensor, float] | None,  # weight [C] and epsilon
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [T, C], [T, C]
        """The sum plus ``residual``, and with ``norm`` that normed; else twice the same."""
        return sum_over_peers(self._inboxes, term, residual, norm, overlap=self._overlap)

    def agree_with(self, summed: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        """Try sums out, all ranks together: whether another way comes to the same.

        Raises :class:`RankLostError` where a sum does not end. The device has to be left then.
        """
        found = True
        for num_tokens in (1, self.most_tokens, 1):
            shape = (num_tokens, self._inboxes.columns)
            numbers = torch.arange(shape[0] * shape[1], device=self._memory.own.device)
            most = max(2, _EXACT // self._inboxes.size)
            term = ((numbers + 3 * self._inboxes.rank) % most).view(shape).to(self._dtype)
            total, _ = self.of(term, None, None)
            self._wait()
            found = found and torch.equal(total, summed(term.clone()))
        return found

    def _wait(self) -> None:
        """Wait for the device, but not for ever."""
        if self._memory.own.device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        until = time.monotonic() + _TRIAL_SECONDS
        while not done.query():
            if time.monotonic() > until:
                raise RankLostError(
                    f"Rank {self._inboxes.rank} of {self._inboxes.size}: a sum over the GPUs' "
                    f"memory, tried out at the start, has not ended for {_TRIAL_SECONDS:g} "
                    "seconds. disable_custom_all_reduce=True leaves all sums to NCCL."
                )
            time.sleep(0.001)
