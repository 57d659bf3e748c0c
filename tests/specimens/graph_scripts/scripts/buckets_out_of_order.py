"""Graphs of one pool whose results are kept, replayed in another order than that of capture."""

import torch

WIDTH = 6


def forward(weight, x):
    return torch.tanh(x @ weight) * 2


def weight(device):
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(9)).to(device)


def captured(weight, size, pool):
    x = torch.zeros(size, WIDTH, device="cuda")
    forward(weight, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = forward(weight, x)
    return graph, x, out


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(count, WIDTH, generator=generator) for count in (2, 4)]


def serve():
    pool = torch.cuda.graph_pool_handle()
    matrix = weight("cuda")
    graphs = {size: captured(matrix, size, pool) for size in (4, 2)}
    results = []
    for batch in batches():
        graph, x, out = graphs[len(batch)]
        x.copy_(batch)
        graph.replay()
        results.append(out)
    return [out.cpu() for out in results]  # named


def expected():
    return [forward(weight("cpu"), each) for each in batches()]


if __name__ == "__main__":
    print(serve())
