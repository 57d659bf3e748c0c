"""The part behind attention reads the tensor that attention made during the capture."""

from types import SimpleNamespace

import torch

TOKENS, WIDTH = 4, 8


def weight(device):
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3)).to(device)


def attention(x):
    return torch.softmax(x @ x.T, -1) @ x


class Piecewise:
    def __init__(self):
        self.weight = weight("cuda")
        self.x = torch.zeros(TOKENS, WIDTH, device="cuda")
        self.context = SimpleNamespace(attended=attention(self.x))
        self.mlp()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.mlp()

    def mlp(self):
        return torch.relu(self.context.attended @ self.weight) + self.x  # named

    def __call__(self, x):
        self.x.copy_(x)
        self.context.attended = attention(self.x)
        self.graph.replay()
        return self.y.cpu()


def inputs():
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(2)]


def serve():
    model = Piecewise()
    return [model(x.cuda()) for x in inputs()]


def expected():
    return [torch.relu(attention(x) @ weight("cpu")) + x for x in inputs()]


if __name__ == "__main__":
    print(serve())
