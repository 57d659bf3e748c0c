"""Before a replay the eager path's index pointers are written, not the ones the graph captured.

Stands for sgl-project/sglang#37975: hidden until a kernel really read them.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench

ROWS = 4


class Backend:
    """Has one buffer for eager steps and one for graphs."""

    def __init__(self, bench: Bench) -> None:
        self.seq_lens = bench.ints(1, 9, ROWS)
        self.kv_indptr = bench.zeros(ROWS + 1, dtype=torch.int64)
        self.graph_kv_indptr = bench.zeros(ROWS + 1, dtype=torch.int64)
        self.graph_kv_indptr[1:] = self.seq_lens.cumsum(0)
        self.kv_sums = bench.randn(100).cumsum(0)

    def init_forward_metadata(self) -> None:
        self.kv_indptr[1:] = self.seq_lens.cumsum(0)

    def init_forward_metadata_replay(self, seq_lens: torch.Tensor) -> None:
        raise NotImplementedError

    def decode(self, kv_indptr: torch.Tensor) -> torch.Tensor:
        return self.kv_sums[kv_indptr[1:]] - self.kv_sums[kv_indptr[:-1]]

    def eager(self) -> torch.Tensor:
        self.init_forward_metadata()
        return self.decode(self.kv_indptr)


class Buggy(Backend):
    """Updates the eager path's buffer."""

    def init_forward_metadata_replay(self, seq_lens: torch.Tensor) -> None:
        self.seq_lens.copy_(seq_lens)
        self.kv_indptr[1:] = seq_lens.cumsum(0)


class Fixed(Backend):
    """Updates the buffer that the graph reads."""

    def init_forward_metadata_replay(self, seq_lens: torch.Tensor) -> None:
        self.seq_lens.copy_(seq_lens)
        self.graph_kv_indptr[1:] = seq_lens.cumsum(0)


def check(form: type[Backend], bench: Bench) -> None:
    backend = form(bench)
    bench.replay(
        backend.decode,
        {"kv_indptr": backend.graph_kv_indptr},
        eager=backend.eager,
        vary=[
            lambda: backend.init_forward_metadata_replay(bench.ints(9, 20, ROWS)),
            lambda: backend.init_forward_metadata_replay(bench.ints(9, 20, ROWS)),
        ],
    )
