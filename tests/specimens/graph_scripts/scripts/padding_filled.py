"""A scatter of a padded batch: the rows behind the batch write to a slot of nobody's."""

import torch

ROWS, WIDTH, SLOTS = 4, 3, 9


class Writer:
    """The last slot is nobody's."""

    def __init__(self, device):
        self.cache = torch.zeros(SLOTS + 1, WIDTH, device=device)
        self.rows = torch.zeros(ROWS, WIDTH, device=device)
        self.slots = torch.full((ROWS,), SLOTS, device=device)

    def write(self):
        self.cache.index_copy_(0, self.slots, self.rows)

    def fill(self, rows, slots):
        count = len(rows)
        self.rows[:count].copy_(rows)
        self.slots[:count].copy_(slots)
        self.slots[count:].fill_(SLOTS)


def batches():
    yield torch.ones(4, WIDTH), torch.tensor([0, 3, 5, 7])
    yield torch.full((2, WIDTH), 2.0), torch.tensor([1, 3])
    yield torch.full((1, WIDTH), 3.0), torch.tensor([8])


def serve():
    writer = Writer("cuda")
    writer.write()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        writer.write()
    answers = []
    for rows, slots in batches():
        writer.fill(rows.cuda(), slots.cuda())
        graph.replay()
        answers.append(writer.cache[:SLOTS].cpu())
    return answers


def expected():
    cache, answers = torch.zeros(SLOTS, WIDTH), []
    for rows, slots in batches():
        cache[slots] = rows
        answers.append(cache.clone())
    return answers


if __name__ == "__main__":
    print(serve())
