"""Ranks as processes that see each other's memory, as GPUs do; kernels are interpreted there."""

from __future__ import annotations

import mmap
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from sample_engine.parallel.peer_memory import PeerMemory
from tests.engine.support.process import HANG_SECONDS

__all__ = ["on_peers"]


def on_peers(size: int, num_bytes: int, work: Callable[[int, PeerMemory], Any]) -> list[Any]:
    """Do something on each of so many ranks with memory of so many bytes; what came of it.

    They are forks of this process. None outlives the call.
    """
    memory = mmap.mmap(-1, size * num_bytes)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    addresses = tuple(whole.data_ptr() + rank * num_bytes for rank in range(size))
    context = multiprocessing.get_context("fork")
    processes, ends = [], []
    try:
        for rank, own in enumerate(whole.split(num_bytes)):
            ours, theirs = context.Pipe(duplex=False)
            peers = PeerMemory(own, addresses, None)
            process = context.Process(target=_tell, args=(theirs, work, rank, peers), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(ours)
        found = []
        for rank, end in enumerate(ends):
            assert end.poll(HANG_SECONDS), f"rank {rank} of {size} has not come to an end"
            found.append(end.recv())
    finally:
        for process in processes:
            process.kill()
            process.join()
        for end in ends:
            end.close()
    wrong = [each for each in found if isinstance(each, str)]
    assert not wrong, "\n".join(wrong)
    return [each for (each,) in found]


def _tell(
    end: Connection, work: Callable[[int, PeerMemory], Any], rank: int, memory: PeerMemory
) -> None:
    try:
        end.send((work(rank, memory),))
    except BaseException:
        end.send(f"rank {rank}: {traceback.format_exc()}")
