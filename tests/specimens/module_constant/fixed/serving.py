"""Plans a batch, and runs it in a worker."""

import multiprocessing

import torch
from flashinfer.gdn_decode import num_blocks


def plan_in_worker(batch_size: int) -> int:
    context = multiprocessing.get_context("fork")
    blocks = context.Value("i", 0)

    def work() -> None:
        blocks.value = num_blocks(batch_size, torch.device("cpu"))

    process = context.Process(target=work)
    process.start()
    process.join(30)
    return blocks.value
