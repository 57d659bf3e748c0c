"""Two micro-batches on two streams within one capture, forked and joined by events."""

import torch

WIDTH = 4


def half(x, weight):
    return torch.relu(x @ weight)


class Overlap:
    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.weight = torch.randn(WIDTH, WIDTH, generator=generator).cuda()
        self.x = torch.zeros(4, WIDTH, device="cuda")
        self.side = torch.cuda.Stream()
        self.forked, self.joined = torch.cuda.Event(), torch.cuda.Event()

    def forward(self):
        main = torch.cuda.current_stream()
        self.forked.record(main)
        with torch.cuda.stream(self.side):
            self.forked.wait(self.side)
            second = half(self.x[2:], self.weight)
            second.record_stream(main)
            self.joined.record(self.side)
        first = half(self.x[:2], self.weight)
        main.wait_event(self.joined)
        return torch.cat([first, second])


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, WIDTH, generator=generator) for _ in range(3)]


def serve():
    overlap = Overlap()
    overlap.forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = overlap.forward()
    answers = []
    for batch in batches():
        overlap.x.copy_(batch)
        graph.replay()
        answers.append(result.cpu())
    return answers


def expected():
    weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(5))
    return [half(batch, weight) for batch in batches()]


if __name__ == "__main__":
    print(serve())
