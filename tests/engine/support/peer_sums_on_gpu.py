"""A program of two ranks on two GPUs that sum in each other's memory; says whether it is right.

``python -m tests.engine.support.peer_sums_on_gpu STEPS`` runs it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import torch

from sample_engine.parallel.group import RankGroup
from sample_engine.parallel.place import RankPlace
from sample_engine.process.memory_file import MemoryFile

COLUMNS, MOST = 4096, 3000
SIZES = (1, 64, 300, 1, MOST, 5)


def random_tokens(count: int, seed: int, device: torch.device) -> torch.Tensor:
    """The same on both ranks."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(count, COLUMNS, device=device, generator=generator).bfloat16()


def check(group: RankGroup, steps: int, device: torch.device) -> None:
    """Sum, add and norm, one after the other without waiting, then look at all results."""
    weight = random_tokens(1, 7, device)[0]
    done = []
    for step in range(steps):
        count = SIZES[step % len(SIZES)]
        terms = [random_tokens(count, 3 * step + each, device) for each in (0, 1)]
        residual = random_tokens(count, 3 * step + 2, device)
        if step % 5 == group.rank:
            torch.cuda._sleep(2_000_000)  # one rank is late, then the other
        found = group.sum_and_norm(terms[group.rank], residual, (weight, 1e-5))
        assert found is not None, group.way
        done.append((found, (terms[0].float() + terms[1].float()).bfloat16() + residual))
        if len(done) == 6:
            look_at(done, weight)
    look_at(done, weight)


def look_at(
    done: list[tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]], weight: torch.Tensor
) -> None:
    """Compare all, and forget them."""
    for (total, normed), expected in done:
        assert torch.equal(total, expected), total.shape
        wide = expected.double()
        exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
        assert float((normed.double() - exact).norm() / exact.norm()) < 1e-2
    done.clear()


def check_graph(group: RankGroup, steps: int, device: torch.device) -> None:
    """An odd number of sums in a graph that is replayed on other numbers each time."""
    term = random_tokens(4, 1, device)

    def work() -> torch.Tensor:
        stream = term
        for _ in range(3):
            stream = group.all_reduce(stream.clone()) / 2
        return stream

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        out = work()
        graph.capture_end()
        for step in range(steps):
            mine = random_tokens(4, 100 + 2 * step + group.rank, device)
            other = random_tokens(4, 101 + 2 * step - group.rank, device)
            term.copy_(mine)
            if step % 5 == group.rank:
                torch.cuda._sleep(2_000_000)
            graph.replay()
            mean = (mine.float() + other.float()).bfloat16() / 2
            assert torch.equal(out, mean), step
    torch.cuda.synchronize(device)
    graph.reset()


def be_rank(rank: int, file: MemoryFile, steps: int) -> None:
    """One of the two."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = RankGroup(RankPlace(rank, 2, file.path()), device)
    group.share_sums(MOST, COLUMNS, torch.bfloat16)
    with torch.inference_mode():
        check(group, steps, device)
        check_graph(group, steps, device)
    sys.stdout.write(f"rank {rank}: right, {group.way}\n")
    sys.stdout.flush()
    group.least(1)
    os._exit(0)


def main() -> int:
    """Start both, and see how they end."""
    context, file, steps = multiprocessing.get_context("spawn"), MemoryFile(), int(sys.argv[1])
    ranks = [context.Process(target=be_rank, args=(rank, file, steps)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(200)
        if each.exitcode != 0:  # the other one would wait for it
            for left in ranks:
                left.kill()
    return int(any(each.exitcode != 0 for each in ranks))


if __name__ == "__main__":
    sys.exit(main())
