"""Offsets of a ragged batch: planned before each replay, into the memory that the graph reads."""

import torch

ROWS, TOKENS, WIDTH = 3, 12, 4


def offsets_of(lengths):
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def last_tokens(x, offsets):
    return x[offsets[1:] - 1] * 2


class Runner:
    def __init__(self):
        self.x = torch.zeros(TOKENS, WIDTH, device="cuda")
        self.lengths = torch.ones(ROWS, dtype=torch.int64, device="cuda")
        self.offsets = torch.zeros(ROWS + 1, dtype=torch.int64, device="cuda")
        self.plan()
        last_tokens(self.x, self.offsets)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = last_tokens(self.x, self.offsets)

    def plan(self):
        self.offsets.copy_(offsets_of(self.lengths))

    def __call__(self, x, lengths):
        self.x[: len(x)].copy_(x)
        self.lengths.copy_(lengths)
        self.plan()
        self.graph.replay()
        return self.out.cpu()


def batches():
    generator = torch.Generator().manual_seed(1)
    for lengths in ([2, 3, 1], [4, 4, 4], [1, 1, 7]):
        yield torch.randn(sum(lengths), WIDTH, generator=generator), torch.tensor(lengths)


def serve():
    runner = Runner()
    return [runner(x.cuda(), lengths.cuda()) for x, lengths in batches()]


def expected():
    return [last_tokens(x, offsets_of(lengths)) for x, lengths in batches()]


if __name__ == "__main__":
    print(serve())
