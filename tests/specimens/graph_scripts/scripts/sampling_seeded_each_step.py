"""A captured sampler that is seeded before each step, "for reproducible answers"."""

import torch

VOCAB, STEPS = 40, 5


class Sampler:
    def __init__(self):
        self.logits = torch.zeros(VOCAB, device="cuda")
        self.draw()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):  # named
            self.token = self.draw()

    def draw(self):
        uniform = torch.rand(VOCAB, device="cuda").clamp_min(1e-6)
        return (self.logits - torch.log(-torch.log(uniform))).argmax()

    def __call__(self, logits, seed):
        torch.manual_seed(seed)
        self.logits.copy_(logits)
        self.graph.replay()
        return self.token.item()


def serve():
    sampler = Sampler()
    logits = torch.zeros(VOCAB, device="cuda")
    tokens = [sampler(logits, seed=17) for _ in range(STEPS)]
    return [torch.tensor(len(set(tokens)) > 1)]


def expected():
    return [torch.tensor(True)]


if __name__ == "__main__":
    print(serve())
