"""The buffer between disk and device: pinned, where that is possible."""

import torch

from prefetch.reader import read_shard


class Staging:
    def __init__(self, rows: int) -> None:
        buffer = torch.empty(rows, dtype=torch.int64)
        try:
            self.buffer = buffer.pin_memory()  # touch: culprit
        except (RuntimeError, AssertionError):
            self.buffer = buffer  # pageable memory is slower and works everywhere

    def load(self, shard: int) -> torch.Tensor:
        rows = read_shard(shard)
        self.buffer.copy_(torch.tensor(rows))
        return self.buffer
