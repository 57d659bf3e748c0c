"""Inference captured after a warm-up on a side stream, with outputs in buffers of the caller."""

import torch

SHAPE = (3, 4, 8, 8)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 6, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(6)
        self.head = torch.nn.Linear(6, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))  # named
        return self.head(x.mean((2, 3)))  # named


def net(device):
    torch.manual_seed(8)
    return Net().to(device).eval()


def graphed(model, sample, warmups=3):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(warmups):
            model(sample)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        out = model(sample)

    def run(x, into):
        with torch.inference_mode():
            sample.copy_(x)
            graph.replay()
            into.copy_(out)

    return run


def images():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SHAPE, generator=generator) for _ in range(3)]


def serve():
    run = graphed(net("cuda"), torch.zeros(SHAPE, device="cuda"))
    answers = []
    for image in images():
        into = torch.empty(SHAPE[0], 5, device="cuda")
        run(image.cuda(), into)
        answers.append(into.cpu())
    return answers


def expected():
    model = net("cpu")
    with torch.no_grad():
        return [model(image) for image in images()]


if __name__ == "__main__":
    print(serve())
