"""Persistent buffers have max_num_seqs rows, the graph was captured with more.

Stands for vllm-project/vllm#41016 and sgl-project/sglang#29695: a kernel walks past its buffer,
into the one that was allocated behind it.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

MAX_NUM_SEQS, CAPTURE_SIZE, SLOTS, WIDTH = 4, 8, 32, 8


class Buffers:
    """Two buffers, one behind the other in one allocation: first lengths, then slots."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.rows = self.capacity()
        arena = bench.zeros(2 * CAPTURE_SIZE, dtype=torch.int64)
        self.slots = arena[self.rows : self.rows + CAPTURE_SIZE]
        self.static = {
            "arena": arena,
            "hidden": bench.randn(CAPTURE_SIZE, WIDTH),
            "cache": bench.zeros(SLOTS, WIDTH),
        }
        self.num_reqs = MAX_NUM_SEQS
        self.prepare(MAX_NUM_SEQS)

    def capacity(self) -> int:
        raise NotImplementedError

    def prepare(self, num_reqs: int) -> None:
        self.num_reqs = num_reqs
        arena = self.static["arena"].zero_()
        arena[:num_reqs] = self.bench.ints(1, 20, num_reqs)
        # Requests write to odd slots, padded rows to nobody's.
        order = self.bench.tensor(self.bench.shuffled(SLOTS // 2)[:num_reqs])
        self.slots[:num_reqs] = order * 2 + 1

    def step(
        self, arena: torch.Tensor, hidden: torch.Tensor, cache: torch.Tensor, rows: int = CAPTURE_SIZE
    ) -> torch.Tensor:
        seq_lens = torch.as_strided(arena, (rows,), (1,))  # a kernel has a pointer and a count
        seq_lens.add_(1)
        slots = arena[self.rows : self.rows + rows].remainder(SLOTS)
        cache.zero_().index_copy_(0, slots, hidden[:rows] * seq_lens[:, None])
        return cache[1::2].clone()

    def eager(
        self, arena: torch.Tensor, hidden: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        return self.step(arena, hidden, cache, self.num_reqs)


class Buggy(Buffers):
    """Sized for requests."""

    def capacity(self) -> int:
        return MAX_NUM_SEQS


class Fixed(Buffers):
    """Sized for whatever a graph is captured with."""

    def capacity(self) -> int:
        return max(MAX_NUM_SEQS, CAPTURE_SIZE)


def check(form: type[Buffers], bench: Bench) -> None:
    buffers = form(bench)
    bench.replay(
        buffers.step,
        buffers.static,
        eager=buffers.eager,
        vary=[lambda: buffers.prepare(bench.lengths(1, 2, MAX_NUM_SEQS + 1)[0])],
    )
