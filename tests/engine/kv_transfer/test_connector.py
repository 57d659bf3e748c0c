"""The connector: what it asks of a store, and how it goes on without one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sample_engine.errors import KVTransferError
from sample_engine.kv_transfer.block_mover import BlockMover
from sample_engine.kv_transfer.config import KVTransferConfig
from sample_engine.kv_transfer.connector import KVConnector
from sample_engine.kv_transfer.shared_memory import SharedMemoryStore
from sample_engine.kv_transfer.store import BlockStore, StoreError

BLOCKS = 8


class DictStore(BlockStore):
    """Keeps blocks in a dictionary; ``error`` says that it does not work."""

    def __init__(self, blocks: dict[str, bytes]) -> None:
        super().__init__()
        self.blocks = blocks
        self.error = ""
        self.calls = 0
        self.closed = False

    def get(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        self._count()
        for index, (key, row) in enumerate(zip(keys, rows, strict=True)):
            if key not in self.blocks:
                return index
            row[:] = self.blocks[key]
        return len(keys)

    def put(self, keys: Sequence[str], rows: Sequence[memoryview]) -> int:
        self._count()
        before = len(self.blocks)
        self.blocks.update({key: bytes(row) for key, row in zip(keys, rows, strict=True)})
        return len(self.blocks) - before

    def close(self) -> None:
        self.closed = True

    def describe(self) -> str:
        return "a dictionary"

    def _count(self) -> None:
        self.calls += 1
        if self.error:
            raise StoreError(self.error)


class Engine:
    """Caches, and a connector of them; ``now`` is its clock."""

    def __init__(self, store: BlockStore, model: str = "m", rows: int = 3, **config: Any) -> None:
        generator = torch.Generator().manual_seed(BLOCKS)
        self.caches = [torch.randn((BLOCKS, 4, 2), generator=generator) for _ in range(2)]
        self.now = 0.0
        row = sum(each[0].numel() * 4 for each in self.caches)
        self.connector = KVConnector(
            KVTransferConfig(**config),
            BlockMover(self.caches, most_bytes=rows * row),
            model_hash=model,
            dtype="float32",
            block_size=4,
            open_store=lambda _: store,
            clock=lambda: self.now,
        )


def hashes(count: int) -> list[bytes]:
    return [bytes([number]) * 16 for number in range(count)]


def save(engine: Engine, count: int) -> None:
    engine.connector.save([(each, index + 1) for index, each in enumerate(hashes(count))])


def test_what_one_engine_saves_another_loads_in_parts() -> None:
    blocks: dict[str, bytes] = {}
    one, two = Engine(DictStore(blocks)), Engine(DictStore(blocks))
    for each in two.caches:
        each.zero_()
    save(one, 5)
    assert len(blocks) == 5
    assert two.connector.load(hashes(7), [7, 6, 5, 4, 3, 2, 1]) == 5
    for source, target in zip(one.caches, two.caches, strict=True):
        assert torch.equal(target[[7, 6, 5, 4, 3]], source[[1, 2, 3, 4, 5]])
        assert not target[[0, 1, 2]].any()
    assert one.connector.metrics()["saved_blocks"] == 5
    found = two.connector.metrics()
    assert (found["queried_blocks"], found["loaded_blocks"]) == (7, 5)


def test_engines_of_other_models_find_nothing() -> None:
    blocks: dict[str, bytes] = {}
    save(Engine(DictStore(blocks)), 3)
    other = Engine(DictStore(blocks), model="other")
    assert other.connector.load(hashes(3), [1, 2, 3]) == 0
    save(other, 3)
    assert len(blocks) == 6


def test_a_producer_does_not_fetch_and_a_consumer_does_not_store() -> None:
    blocks: dict[str, bytes] = {}
    producer = Engine(DictStore(blocks), kv_role="kv_producer")
    save(producer, 3)
    assert producer.connector.load(hashes(3), [1, 2, 3]) == 0
    consumer = Engine(DictStore(blocks), kv_role="kv_consumer")
    save(consumer, 5)
    assert len(blocks) == 3
    assert consumer.connector.load(hashes(3), [1, 2, 3]) == 3


def test_an_engine_goes_on_without_a_store_that_fails_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = DictStore({})
    engine = Engine(store)
    save(engine, 2)
    store.error, store.calls = "the store is away", 0
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert engine.connector.load(hashes(2), [1, 2]) == 0
            save(engine, 3)
        assert store.calls == 2, "once for each direction, and not again so soon"
        words = [record.getMessage().partition(":")[0] for record in caplog.records]
        assert words == ["KV blocks are not fetched for now", "KV blocks are not stored for now"]
        metrics = engine.connector.metrics()
        assert metrics["not_fetching"] == metrics["not_storing"] == "the store is away"
        assert (metrics["failures"], metrics["unsaved_blocks"]) == (2, 9)
        store.error, engine.now = "", 1.0
        assert engine.connector.load(hashes(2), [1, 2]) == 2
        assert engine.connector.metrics()["not_fetching"] == ""
        assert engine.connector.metrics()["not_storing"] != "", "nobody has asked yet"
        save(engine, 3)
        assert engine.connector.metrics()["not_storing"] == ""


def test_a_request_is_refused_if_that_is_wished() -> None:
    store = DictStore({})
    engine = Engine(store, kv_load_failure_policy="fail")
    store.error = "the store is away"
    for _ in range(2):
        with pytest.raises(KVTransferError, match="cannot be fetched: the store is away"):
            engine.connector.load(hashes(2), [1, 2])
    assert store.calls == 1
    save(engine, 1)
    store.error, engine.now = "", 1.0
    assert engine.connector.load(hashes(2), [1, 2]) == 0


def test_a_store_that_cannot_be_opened_is_opened_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[DictStore] = []

    def open_store(config: KVTransferConfig) -> BlockStore:
        if not stores:
            raise StoreError("nobody listens")
        return stores[0]

    mover = BlockMover([torch.zeros(BLOCKS, 4)])
    about: dict[str, Any] = {"model_hash": "m", "dtype": "float32", "block_size": 4}
    now = [0.0]
    with caplog.at_level(logging.WARNING):
        connector = KVConnector(
            KVTransferConfig(), mover, **about, open_store=open_store, clock=lambda: now[0]
        )
    assert "KV blocks are not fetched for now: nobody listens" in caplog.text
    assert connector.load(hashes(1), [1]) == 0
    connector.save([(hashes(1)[0], 1)])
    stores.append(DictStore({}))
    now[0] = 60.0
    connector.save([(hashes(1)[0], 1)])
    assert connector.load(hashes(1), [1]) == 1
    connector.close()
    connector.close()
    assert stores[0].closed
    stores.clear()
    must = KVTransferConfig(kv_load_failure_policy="fail")
    with pytest.raises(KVTransferError, match="nobody listens"):
        KVConnector(must, mover, **about, open_store=open_store)


def test_the_configured_store_is_opened(shm: str) -> None:
    connector = KVConnector(
        KVTransferConfig(kv_connector_extra_config={"directory": shm, "max_bytes": 123}),
        BlockMover([torch.zeros(BLOCKS, 4)]),
        model_hash="m",
        dtype="float32",
        block_size=4,
    )
    store = connector._opened()
    assert isinstance(store, SharedMemoryStore)
    assert store.max_bytes == 123
    connector.close()


class SlowStore(DictStore):
    """Takes its time for each call, by the engine's clock."""

    engine: Engine
    seconds = 3.0

    def _count(self) -> None:
        super()._count()
        self.engine.now += self.seconds


def test_a_slow_store_is_not_waited_for_without_end() -> None:
    store = SlowStore({})
    engine = store.engine = Engine(store, rows=1)
    save(engine, 5)  # a call for each block
    assert (store.calls, len(store.blocks)) == (2, 2)
    found = engine.connector.metrics()
    assert (found["saved_blocks"], found["unsaved_blocks"], found["cut_short"]) == (2, 3, 1)
    other = SlowStore({})
    writer = other.engine = Engine(other, rows=1)
    other.seconds = 0.0
    save(writer, 5)
    other.seconds = 3.0
    assert writer.connector.load(hashes(5), [1, 2, 3, 4, 5]) == 2
    assert writer.connector.load(hashes(2), [1, 2]) == 2  # all that was wanted
    found = writer.connector.metrics()
    assert (found["loaded_blocks"], found["cut_short"], found["failures"]) == (4, 1, 0)
