"""Measures how fast KV blocks get out of the cache and into it, beside plain copies.

The cache has the shape of Llama 3 8B: 32 layers, 8 KV heads of 128, blocks of 16 tokens and 2 MiB.
On a GPU the rows are in pinned memory, and half of the bandwidth of a copy is to be reached.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from results_file import parser, publish, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sample_engine.kv_transfer.block_mover import BlockMover

LAYERS, BLOCK_SIZE, KV_HEADS, HEAD_DIM = 32, 16, 8, 128
BLOCKS = 512
TARGET = 0.5


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median time of a call that waits for the device; the first one is not counted."""
    work()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> int:
    """Measure both directions for some numbers of blocks."""
    options = parser("Moving KV blocks, beside plain copies.", rounds=20).parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = (2, BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    caches = [
        each
        for _ in range(LAYERS)
        for each in torch.zeros(shape, dtype=torch.bfloat16, device=device)
    ]
    mover = BlockMover(caches)
    on_gpu = device.type == "cuda"
    rows, data = [], {}
    for count in sorted({1, 8, mover.num_rows}):
        ids = torch.randperm(BLOCKS)[:count].tolist()
        size = count * mover.block_bytes
        host = torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
        near = torch.empty(size, dtype=torch.uint8, device=device)

        def scatter(ids: list[int] = ids) -> None:
            mover.scatter(ids)
            if on_gpu:
                torch.cuda.synchronize()

        measured = {
            "out of the cache": (
                lambda ids=ids: mover.gather(ids),
                lambda h=host, n=near: h.copy_(n),
            ),
            "into the cache": (scatter, lambda h=host, n=near: n.copy_(h)),
        }
        for name, (moving, copying) in measured.items():
            moved = size / seconds(moving, options.rounds) / 1e9
            copied = size / seconds(copying, options.rounds) / 1e9
            part = moved / copied
            rows.append([f"{name}, {count}", f"{moved:.1f}", f"{copied:.1f}", f"{part:.2f}"])
            data[f"{name}, {count}"] = {"moved": moved, "copied": copied, "part": round(part, 3)}
    header = ["blocks", "GB/s", "GB/s of a plain copy", f"part (target {TARGET} on a GPU)"]
    title = "Moving KV blocks between the cache and the CPU"
    publish("kv_blocks", title, table(header, rows), {"moves": data}, save=options.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
