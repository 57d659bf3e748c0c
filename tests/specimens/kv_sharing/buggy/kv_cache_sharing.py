"""Two engines, one KV cache: the first stores what the second retrieves."""

import mmap
import multiprocessing

from engine.config import KVTransferConfig

SIZE = 4096


def run_store(cache: mmap.mmap, config: KVTransferConfig, prompt: str, done) -> None:
    from engine.gpu_worker import Worker

    keys = Worker().prefill(prompt)
    cache[0:2] = len(keys).to_bytes(2, "little")
    cache[2 : 2 + len(keys)] = keys
    done.set()


def run_retrieve(cache: mmap.mmap, config: KVTransferConfig, prompt: str, done, hits) -> None:
    from engine.gpu_worker import Worker

    worker = Worker()
    if not done.wait(10):
        return
    stored = cache[2 : 2 + int.from_bytes(cache[0:2], "little")]
    hits.value = int(stored == worker.prefill(prompt))


def share(prompt: str) -> bool:
    """Whether the second engine found the first one's cache."""
    context = multiprocessing.get_context("fork")  # spawn would not inherit the cache
    cache = mmap.mmap(-1, SIZE)
    done, hits = context.Event(), context.Value("i", 0)
    store = context.Process(
        target=run_store, args=(cache, KVTransferConfig("kv_producer"), prompt, done)
    )
    retrieve = context.Process(
        target=run_retrieve, args=(cache, KVTransferConfig("kv_consumer"), prompt, done, hits)
    )
    store.start()
    store.join(30)
    retrieve.start()
    retrieve.join(30)
    return bool(hits.value) and store.exitcode == 0
