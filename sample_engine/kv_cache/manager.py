"""The blocks of each request: given when it grows, found again by their text, let go at its end.

It decides nothing: whether a request may grow or has to give way is the scheduler's business. It
imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sample_engine.batch.request import Request
from sample_engine.kv_cache.block_pool import BlockPool
from sample_engine.kv_cache.prefix_cache import ROOT_HASH, PrefixCache, block_hash

__all__ = ["ExternalBlocks", "KVCacheManager"]


class ExternalBlocks(Protocol):
    """Where blocks come from that this engine has not computed; ``kv_transfer`` has one.

    ``fetches``: whether it is to be asked at all; it may be there only to be given blocks.
    """

    @property
    def fetches(self) -> bool:
        """Whether :meth:`load` may find anything."""

    def load(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> int:
        """Fill blocks with what has those hashes, up to the first that is not there.

        Returns how many these were. Raises :class:`KVTransferError` where a request that could not
        be looked for is not to be computed either.
        """


class _Known:
    """What is known of a request's full blocks."""

    __slots__ = ("hashes", "published")

    def __init__(self) -> None:
        self.hashes: list[bytes] = []  # of its first full blocks; outlives a preemption
        self.published = 0  # how many of its blocks can be found by others


class KVCacheManager:
    """Blocks of ``block_size`` tokens for requests; ``request.block_ids`` is kept up to date.

    ``sees_next_token``: what a block holds of its last token depends on the token after it, too (a
    draft head gets both). Then a block is found only by texts that have this token in common.
    ``external``: who has blocks that are not found here; blocks that are computed are noted for it.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool,
        sees_next_token: bool = False,
        external: ExternalBlocks | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.prefix_cache = PrefixCache()
        self._caching = enable_prefix_caching
        self._ahead = int(sees_next_token)
        self._external = external
        self._computed: list[tuple[bytes, int]] = []  # since they were last taken
        self._known: dict[int, _Known] = {}  # by Request.arrival, which no two requests share

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks that hold the beginning of a request. One token at least is left to compute."""
        if not self._caching:
            return []
        num_full = (request.num_tokens - 1) // self.block_size
        return self.prefix_cache.find(self._hashes(request, num_full)[:num_full])

    def num_free_besides(self, block_ids: list[int]) -> int:
        """Blocks that would be free if these were held."""
        ref_count = self.pool.ref_count
        return self.pool.num_free - sum(not ref_count(block_id) for block_id in block_ids)

    def admit(self, request: Request, prefix: list[int]) -> None:
        """Give a request without blocks the prefix that :meth:`find_prefix` found for it."""
        assert not request.block_ids, f"{request.request_id!r} has blocks: it was admitted before"
        self.pool.share(prefix)
        request.block_ids = list(prefix)
        request.num_computed_tokens = len(prefix) * self.block_size
        self._known.setdefault(request.arrival, _Known()).published = len(prefix)

    def load_further(self, request: Request) -> tuple[int, int]:
        """Fetch what follows the prefix of a request that was just admitted, as far as it is there.

        Returns how many tokens were looked for, and how many came; one token at least is left to
        compute. Raises :class:`KVTransferError`.
        """
        first, size = len(request.block_ids), self.block_size
        num_full = (request.num_tokens - 1) // size
        external = self._external
        if external is None or not external.fetches or num_full <= first:
            return 0, 0
        if not self.grow(request, num_full * size):
            return 0, 0
        hashes = self._hashes(request, num_full)[first:num_full]
        count = external.load(hashes, request.block_ids[first:num_full])
        for index in range(count):
            self.prefix_cache.put(hashes[index], request.block_ids[first + index])
        self._known[request.arrival].published = first + count
        request.num_computed_tokens += count * size
        return len(hashes) * size, count * size

    def take_computed(self) -> list[tuple[bytes, int]]:
        """The full blocks that were computed since the last call: their hashes, and where they are.

        To be used before another step is scheduled, which may give the blocks away.
        """
        found, self._computed = self._computed, []
        return found

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Give a request the blocks for so many tokens; False: there are not enough, none given."""
        missing = self.num_blocks_for(num_tokens) - len(request.block_ids)
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        new = self.pool.allocate(missing)
        for block_id in new:
            self.prefix_cache.forget(block_id)
        request.block_ids += new
        return True

    def publish(self, request: Request, computed: int) -> None:
        """Let the full blocks of a request be found by others that begin alike.

        ``computed``: how many of its tokens are known to be computed well. More may be under way.
        """
        if not self._caching:
            return
        if self._ahead:
            # All tokens may be computed, where the one that ended the text had been a draft.
            computed = min(computed, request.num_tokens - 1)
        num_full = computed // self.block_size
        entry = self._known[request.arrival]
        if num_full <= entry.published:
            return
        hashes = self._hashes(request, num_full)
        for index in range(entry.published, num_full):
            block_id = request.block_ids[index]
            if self.prefix_cache.put(hashes[index], block_id) and self._external is not None:
                self._computed.append((hashes[index], block_id))
        entry.published = num_full

    def discard(self, request: Request) -> None:
        """Let no other request find the blocks of this one: what is in them is not to be trusted.

        Requests that hold some of them already keep them.
        """
        for block_id in request.block_ids:
            self.prefix_cache.forget(block_id)

    def release(self, request: Request, *, forget: bool) -> None:
        """Take a request's blocks. ``forget``: for good, it will not come again.

        The end of a text is reused before its beginning, which more requests have in common.
        """
        self.pool.free(reversed(request.block_ids), self.prefix_cache)
        request.block_ids = []
        request.num_computed_tokens = 0
        if forget:
            self._known.pop(request.arrival, None)

    def _hashes(self, request: Request, num_full: int) -> list[bytes]:
        """The hashes of a request's full blocks, at least the first ``num_full``."""
        hashes = self._known.setdefault(request.arrival, _Known()).hashes
        size = self.block_size
        for index in range(len(hashes), num_full):
            parent = hashes[-1] if hashes else ROOT_HASH
            tokens = request.token_ids(index * size, (index + 1) * size + self._ahead)
            hashes.append(block_hash(parent, tokens))
        return hashes
