"""Greedy decoding of a tiny attention layer: one captured step, its position lies on the device."""

import torch

VOCAB, WIDTH, LONGEST, STEPS = 11, 8, 12, 6


def weights(device):
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(*shape, generator=generator) for shape in ((VOCAB, WIDTH), (WIDTH, 3 * WIDTH))]
    return [each.to(device) for each in made]


def attend(query, keys, values, position):
    scores = keys @ query / WIDTH**0.5
    seen = torch.arange(LONGEST, device=keys.device) <= position
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), 0) @ values


def step(embedding, project, keys, values, token, position):
    query, key, value = (embedding[token][0] @ project).split(WIDTH)
    keys.index_copy_(0, position, key[None])
    values.index_copy_(0, position, value[None])
    mixed = attend(query, keys, values, position)
    return (embedding @ mixed).argmax(0, keepdim=True)


class Decoder:
    def __init__(self, device="cuda"):
        self.embedding, self.project = weights(device)
        self.keys = torch.zeros(LONGEST, WIDTH, device=device)
        self.values = torch.zeros(LONGEST, WIDTH, device=device)
        self.token = torch.zeros(1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.graph = None

    def _step(self):
        token = step(
            self.embedding, self.project, self.keys, self.values, self.token, self.position
        )
        self.token.copy_(token)
        self.position.add_(1)

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def generate(self, first):
        for each in (self.keys, self.values):
            each.zero_()
        self.token.fill_(first)
        self.position.zero_()
        tokens = []
        for _ in range(STEPS):
            self.graph.replay() if self.graph is not None else self._step()
            tokens.append(self.token.item())
        return torch.tensor(tokens)


def serve():
    decoder = Decoder()
    decoder.capture()
    return [decoder.generate(first) for first in (1, 7)]


def expected():
    decoder = Decoder("cpu")
    return [decoder.generate(first) for first in (1, 7)]


if __name__ == "__main__":
    print(serve())
