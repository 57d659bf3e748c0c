"""Block tables as arrays: a row for each running request, and the slots of tokens.

Which blocks a request has is decided by ``kv_cache.manager`` and written down here, on the CPU
alone; ``input_batch`` brings what a step needs to the device.

Shapes::

    S  rows: as many as requests may run at once
    T  tokens of a step
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sample_engine.batch.request import NULL_BLOCK

__all__ = ["BlockTables"]


class BlockTables:
    """The blocks of each row, in order; the null block where there is none."""

    def __init__(self, num_rows: int, max_blocks: int, block_size: int) -> None:
        self.ids: npt.NDArray[np.int32] = np.full((num_rows, max_blocks), NULL_BLOCK, np.int32)
        self.version = 0  # changes with the contents
        self._lengths = [0] * num_rows
        self._shift = block_size.bit_length() - 1  # block sizes are powers of two
        self._mask = block_size - 1

    def clear(self, row: int) -> None:
        """Forget the blocks of a row."""
        self.ids[row, : self._lengths[row]] = NULL_BLOCK
        self._lengths[row] = 0
        self.version += 1

    def extend(self, row: int, block_ids: Sequence[int]) -> None:
        """Bring a row up to date with a request's blocks, of which it has the first ones."""
        known = self._lengths[row]
        if known == len(block_ids):
            return
        self.ids[row, known : len(block_ids)] = block_ids[known:]
        self._lengths[row] = len(block_ids)
        self.version += 1

    def num_positions(self, row: int) -> int:
        """How many tokens the blocks of a row have room for."""
        return self._lengths[row] << self._shift

    def slots(
        self,
        rows: npt.NDArray[Any],  # [T] the row of each token
        positions: npt.NDArray[np.int64],  # [T]
        out: npt.NDArray[np.int64],  # [T]
    ) -> None:
        """Where keys and values of tokens are kept: block * block size + offset in the block."""
        np.left_shift(self.ids[rows, positions >> self._shift], self._shift, out=out)
        out += positions & self._mask
