"""A mask of the lengths is kept by shape after its first use, which is the warm-up."""

import torch

ROWS, TOKENS = 3, 6


class MeanPool(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.masks = {}

    def mask(self, x, lengths):
        key = x.shape[:2]
        if key not in self.masks:
            steps = torch.arange(x.shape[1], device=x.device)
            self.masks[key] = steps[None] < lengths[:, None]  # named
        return self.masks[key]

    def forward(self, x, lengths):
        mask = self.mask(x, lengths)[..., None]
        return (x * mask).sum(1) / mask.sum(1).clamp_min(1)


class Runner:
    def __init__(self, width=4):
        self.pool = MeanPool()
        self.x = torch.zeros(ROWS, TOKENS, width, device="cuda")
        self.lengths = torch.full((ROWS,), TOKENS, device="cuda")
        with torch.no_grad():
            self.pool(self.x, self.lengths)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = self.pool(self.x, self.lengths)

    def __call__(self, x, lengths):
        self.x.copy_(x)
        self.lengths.copy_(lengths)
        self.graph.replay()
        return self.out.cpu()


def batches():
    generator = torch.Generator().manual_seed(1)
    for lengths in ([6, 2, 3], [1, 5, 4]):
        yield torch.randn(ROWS, TOKENS, 4, generator=generator), torch.tensor(lengths)


def serve():
    runner = Runner()
    return [runner(x.cuda(), lengths.cuda()) for x, lengths in batches()]


def expected():
    return [MeanPool()(x, lengths) for x, lengths in batches()]


if __name__ == "__main__":
    print(serve())
