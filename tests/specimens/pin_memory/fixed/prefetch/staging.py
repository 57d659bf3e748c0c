"""The buffer between disk and device: pinned, where that is possible."""

import torch

from prefetch.reader import read_shard


class Staging:
    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.buffer = None

    def load(self, shard: int) -> torch.Tensor:
        rows = read_shard(shard)
        if self.buffer is None:  # only now: the readers had to be forked before
            self.buffer = torch.empty(self.rows, dtype=torch.int64)
        self.buffer.copy_(torch.tensor(rows))
        return self.buffer
