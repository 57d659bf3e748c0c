"""What the engine core talks to: blocks by their hashes, from and to a store that may fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sample_engine.errors import KVTransferError
from sample_engine.kv_transfer.block_mover import BlockMover
from sample_engine.kv_transfer.config import KVTransferConfig
from sample_engine.kv_transfer.frame import namespace_of
from sample_engine.kv_transfer.outage import Outage
from sample_engine.kv_transfer.store import BlockStore, StoreError

__all__ = ["KVConnector", "open_store"]

_MOST_SECONDS = 5.0
"""How long a request or a step may go on waiting for a store that works, but slowly."""


def open_store(config: KVTransferConfig) -> BlockStore:
    """Open the store of a configuration. Raises :class:`ConfigError` and :class:`StoreError`."""
    if config.kv_connector == "RedisConnector":
        from sample_engine.kv_transfer.redis_store import RedisStore

        return RedisStore(**config.extra)
    from sample_engine.kv_transfer.shared_memory import SharedMemoryStore

    return SharedMemoryStore(**config.extra)


class KVConnector:
    """An engine's blocks and a store.

    The store is opened at once. Where it does not work, it is tried again later, unless
    ``kv_load_failure_policy`` is ``"fail"``: then :class:`KVTransferError` is raised, here as in
    :meth:`load`. Raises :class:`ConfigError` for settings with which it never will.

    A call of the store takes a bounded time, but there are as many as the blocks need. So after
    5 seconds no further one is begun: the blocks that are left are computed, or are not stored.
    """

    def __init__(
        self,
        config: KVTransferConfig,
        mover: BlockMover,
        *,
        model_hash: str,
        dtype: str,
        block_size: int,
        open_store: Callable[[KVTransferConfig], BlockStore] = open_store,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.namespace = namespace_of(model_hash, dtype, block_size)
        self._mover = mover
        self._open_store = open_store
        self._clock = clock
        self._store: BlockStore | None = None
        self._must = config.fetches and config.kv_load_failure_policy == "fail"
        self._fetching = Outage("fetched", clock, quiet=self._must)
        self._storing = Outage("stored", clock)
        self._counts = dict.fromkeys(
            (
                *("queried_blocks", "loaded_blocks", "saved_blocks", "unsaved_blocks"),
                *("failures", "cut_short"),
            ),
            0,
        )
        try:
            self._opened()
        except StoreError as error:
            self._failed(error, self._fetching if config.fetches else self._storing)
            self._raise_outage()

    @property
    def fetches(self) -> bool:
        """Whether the engine's role is to fetch blocks."""
        return self.config.fetches

    def load(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> int:
        """Fetch blocks, up to the first that the store lacks; returns how many.

        Raises :class:`KVTransferError` where the store does not work and that is to be an error.
        """
        if not self.config.fetches or not hashes:
            return 0
        self._counts["queried_blocks"] += len(hashes)
        loaded = 0
        if self._fetching.is_over:
            try:
                loaded = self._load(hashes, block_ids)
            except StoreError as error:
                self._failed(error, self._fetching)
            else:
                self._fetching.end()
        self._counts["loaded_blocks"] += loaded
        self._raise_outage()
        return loaded

    def save(self, blocks: Sequence[tuple[bytes, int]]) -> None:
        """Store blocks, given as pairs of hash and block; those that cannot be are counted."""
        if not self.config.stores or not blocks:
            return
        left = list(blocks)
        if self._storing.is_over:
            deadline = self._clock() + _MOST_SECONDS
            try:
                while left and not self._is_cut_short(deadline):
                    part = left[: self._mover.num_rows]
                    rows = self._mover.gather([block for _, block in part])
                    keys = [self._key(each) for each, _ in part]
                    self._counts["saved_blocks"] += self._opened().put(keys, rows)
                    left = left[len(part) :]
            except StoreError as error:
                self._failed(error, self._storing)
            else:
                self._storing.end()
        self._counts["unsaved_blocks"] += len(left)

    def metrics(self) -> dict[str, Any]:
        """What happened so far, and why the store does not work, if it does not."""
        found: dict[str, Any] = {"connector": self.config.kv_connector, **self._counts}
        if self._store is not None:
            found.update(self._store.metrics())
        return {**found, "not_fetching": self._fetching.why, "not_storing": self._storing.why}

    def close(self) -> None:
        """Leave the store; twice does no harm."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _load(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> int:
        size, loaded = self._mover.num_rows, 0
        deadline = self._clock() + _MOST_SECONDS
        while loaded < len(hashes) and not self._is_cut_short(deadline):
            keys = [self._key(each) for each in hashes[loaded : loaded + size]]
            count = self._opened().get(keys, self._mover.rows[: len(keys)])
            if count:
                self._mover.scatter(block_ids[loaded : loaded + count])
                loaded += count
            if count < len(keys):
                break
        return loaded

    def _is_cut_short(self, deadline: float) -> bool:
        """Whether the time is over although more is to be moved."""
        over = self._clock() >= deadline
        self._counts["cut_short"] += over
        return over

    def _key(self, block_hash: bytes) -> str:
        return f"{self.namespace}-{block_hash.hex()}"

    def _opened(self) -> BlockStore:
        if self._store is None:
            self._store = self._open_store(self.config)
        return self._store

    def _failed(self, error: StoreError, outage: Outage) -> None:
        self._counts["failures"] += 1
        outage.begin(error)

    def _raise_outage(self) -> None:
        if self._must and self._fetching.why:
            raise KVTransferError(
                f"KV blocks cannot be fetched: {self._fetching.why}. "
                "kv_load_failure_policy='recompute' goes on without them."
            )
