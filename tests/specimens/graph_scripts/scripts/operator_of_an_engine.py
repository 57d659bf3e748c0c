"""An operator that an engine registers for CUDA alone, and that says where it writes."""

import torch

SLOTS, WIDTH = 6, 3

_LIBRARY = torch.library.Library("engine_of_a_script", "FRAGMENT")
_LIBRARY.define("write_rows(Tensor rows, Tensor slots, Tensor(a!) cache) -> ()")


def _write_rows(rows, slots, cache):
    assert rows.is_cuda
    cache.index_copy_(0, slots, rows + torch.ones(WIDTH, device="cuda"))


_LIBRARY.impl("write_rows", _write_rows, "CUDA")


def batches():
    yield torch.ones(2, WIDTH), torch.tensor([0, 3])
    yield torch.full((2, WIDTH), 2.0), torch.tensor([5, 3])


def serve():
    cache = torch.zeros(SLOTS, WIDTH, device="cuda")
    rows = torch.zeros(2, WIDTH, device="cuda")
    slots = torch.zeros(2, dtype=torch.int64, device="cuda")
    write = torch.ops.engine_of_a_script.write_rows
    write(rows, slots, cache.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write(rows, slots, cache)
    answers = []
    for new_rows, new_slots in batches():
        rows.copy_(new_rows)
        slots.copy_(new_slots)
        graph.replay()
        answers.append(cache.cpu())
    return answers


def expected():
    cache, answers = torch.zeros(SLOTS, WIDTH), []
    for rows, slots in batches():
        cache[slots] = rows + 1
        answers.append(cache.clone())
    return answers


if __name__ == "__main__":
    print(serve())
