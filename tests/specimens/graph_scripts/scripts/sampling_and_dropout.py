"""A captured sampler with dropout and Gumbel noise: each replay draws others."""

import torch

ROWS, VOCAB, DRAWS = 4, 50, 6


class Sampler:
    def __init__(self, temperature=0.8):
        self.logits = torch.zeros(ROWS, VOCAB, device="cuda")
        self.temperature = torch.full((ROWS, 1), temperature, device="cuda")
        self._sample()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.tokens, self.kept = self._sample()

    def _sample(self):
        kept = torch.nn.functional.dropout(self.logits + 1, p=0.1, training=True)
        noise = torch.empty_like(kept).exponential_()
        probabilities = torch.softmax(kept / self.temperature, -1)
        return (probabilities / noise).argmax(-1), kept

    def __call__(self, logits):
        self.logits.copy_(logits)
        self.graph.replay()
        return self.tokens.clone(), self.kept.clone()


def serve():
    torch.manual_seed(0)
    sampler = Sampler()
    logits = torch.zeros(ROWS, VOCAB, device="cuda")
    draws = [sampler(logits) for _ in range(DRAWS)]
    tokens = {tuple(tokens.tolist()) for tokens, _ in draws}
    masks = {tuple(kept.flatten().tolist()) for _, kept in draws}
    return [torch.tensor([len(tokens), len(masks)])]


def expected():
    return [torch.tensor([DRAWS, DRAWS])]


if __name__ == "__main__":
    print(serve())
