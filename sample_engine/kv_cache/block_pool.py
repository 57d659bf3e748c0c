"""The blocks of the KV cache: who holds each one, and which is given out next.

It knows numbers alone: not what a block contains (``prefix_cache`` does) and not for which request
it is held (``manager`` does). Block 0 is the null block: block tables point to it where a request
has no block, and it is never given out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable

from sample_engine.batch.request import NULL_BLOCK

__all__ = ["BlockPool"]


class BlockPool:
    """Blocks ``1`` to ``num_blocks - 1``, each held by any number of requests.

    Given out are first the blocks without contents, then, of those whose contents may be wanted
    again, the one that was let go the longest time ago. Making a pool costs nothing, however large
    it is: blocks that never were in use are known by a number alone.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [1]  # of the blocks in use so far; the null block is held for ever
        self._blank: list[int] = []  # free, without contents
        self._kept: OrderedDict[int, None] = OrderedDict()  # free, with contents; oldest first

    @property
    def capacity(self) -> int:
        """Blocks that can be given out at all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        unused = self.num_blocks - len(self._ref_counts)
        return unused + len(self._blank) + len(self._kept)

    def ref_count(self, block_id: int) -> int:
        """How many hold a block."""
        return self._ref_counts[block_id] if block_id < len(self._ref_counts) else 0

    def allocate(self, count: int) -> list[int]:
        """Blocks for one holder. What they contained is lost: whoever kept a note must forget it.

        The caller has looked at :attr:`num_free`.
        """
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} are free"
        return [self._allocate_one() for _ in range(count)]

    def _allocate_one(self) -> int:
        if self._blank:
            block_id = self._blank.pop()
        elif len(self._ref_counts) < self.num_blocks:
            self._ref_counts.append(1)
            return len(self._ref_counts) - 1
        else:
            block_id, _ = self._kept.popitem(last=False)
        self._ref_counts[block_id] = 1
        return block_id

    def share(self, block_ids: Iterable[int]) -> None:
        """Hold blocks once more, for their contents. A free one leaves the free queue."""
        for block_id in block_ids:
            assert block_id != NULL_BLOCK, "the null block has no contents to share"
            if not self._ref_counts[block_id]:
                del self._kept[block_id]  # a blank one is not there: it has nothing to share
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Iterable[int], with_contents: Container[int]) -> None:
        """Let go of blocks, in order: of those in ``with_contents`` the first is reused first."""
        for block_id in block_ids:
            assert block_id != NULL_BLOCK, "the null block is never given out"
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} is freed, but nobody holds it"
            self._ref_counts[block_id] = count
            if count:
                continue
            if block_id in with_contents:
                self._kept[block_id] = None
            else:
                self._blank.append(block_id)
