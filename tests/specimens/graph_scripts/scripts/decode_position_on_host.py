"""Decoding with a position that Python counts: the captured step writes where the capture did."""

import torch

WIDTH, LONGEST = 4, 16


class Cache:
    """Keys of one sequence."""

    def __init__(self, device):
        self.keys = torch.zeros(LONGEST, WIDTH, device=device)

    def write(self, position, key):
        self.keys[position] = key  # named


class Model:
    def __init__(self, device="cuda"):
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(WIDTH, WIDTH, generator=generator).to(device)
        self.cache = Cache(device)
        self.position = 0
        self.hidden = torch.zeros(WIDTH, device=device)
        self.graph = None

    def forward(self, hidden):
        key = torch.tanh(self.weight @ hidden)
        self.cache.write(self.position, key)
        return self.cache.keys.sum(0) + key

    def capture(self):
        self.forward(self.hidden)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward(self.hidden)

    def prefill(self, prompt):
        """Prompts have any length and run without the graph."""
        self.cache.keys.zero_()
        self.position = 0
        for hidden in prompt:
            out = self.forward(hidden)
            self.position += 1
        return out

    def decode(self, hidden):
        if self.graph is None:
            out = self.forward(hidden)
        else:
            self.hidden.copy_(hidden)
            self.graph.replay()
            out = self.out.clone()
        self.position += 1
        return out

    def run(self, prompt, steps):
        hidden = self.prefill(prompt)
        outs = []
        for _ in range(steps):
            hidden = self.decode(hidden)
            outs.append(hidden.cpu())
        return torch.stack(outs)


def prompt():
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


def serve():
    model = Model()
    model.capture()
    return [model.run(prompt().cuda(), 4)]


def expected():
    return [Model("cpu").run(prompt(), 4)]


if __name__ == "__main__":
    print(serve())
