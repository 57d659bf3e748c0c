"""Offsets of a ragged batch are planned once; later batches bring other lengths."""

import torch

ROWS, TOKENS, WIDTH = 3, 12, 4


class Batch:
    def __init__(self, device):
        self.x = torch.zeros(TOKENS, WIDTH, device=device)
        self.lengths = torch.full((ROWS,), 2, device=device)


class Pooler:
    """Takes the last token of each sequence."""

    def __init__(self):
        self.offsets = None

    def begin(self, batch):
        self.offsets = batch.lengths.cumsum(0) - 1  # named

    def __call__(self, batch):
        return batch.x.index_select(0, self.offsets).tanh()


def graphed(pooler, batch):
    pooler.begin(batch)
    pooler(batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = pooler(batch)
    return graph, out


def batches():
    generator = torch.Generator().manual_seed(1)
    for lengths in ([2, 3, 1], [4, 4, 4]):
        yield torch.randn(sum(lengths), WIDTH, generator=generator), torch.tensor(lengths)


def serve():
    batch, pooler = Batch("cuda"), Pooler()
    graph, out = graphed(pooler, batch)
    answers = []
    for x, lengths in batches():
        batch.x[: len(x)] = x.cuda()
        batch.lengths.copy_(lengths)
        graph.replay()
        answers.append(out.cpu())
    return answers


def expected():
    answers = []
    for x, lengths in batches():
        batch, pooler = Batch("cpu"), Pooler()
        batch.x[: len(x)] = x
        batch.lengths.copy_(lengths)
        pooler.begin(batch)
        answers.append(pooler(batch))
    return answers


if __name__ == "__main__":
    print(serve())
