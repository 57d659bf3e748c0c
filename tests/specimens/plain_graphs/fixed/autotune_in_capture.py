"""A kernel is tuned within a capture, because no warm-up has seen its size.

Stands for triton-lang/triton#10596.
"""

import torch


class Tuner:
    """Squares, by the candidate that is best for the number of rows."""

    def __init__(self):
        self.best = {}

    def __call__(self, rows):
        if len(rows) not in self.best:
            self.best[len(rows)] = self.tune(rows)
        return rows * rows if self.best[len(rows)] else torch.square(rows)

    def tune(self, rows):
        errors = torch.stack([(torch.square(rows) - rows * rows).abs().max(), rows.new_ones(())])
        return int(errors.argmin().item())


class Model:
    """Captures a graph for each of some sizes."""

    def __init__(self, sizes, width):
        self.rows = torch.ones(max(sizes), width, device="cuda")
        self.square = Tuner()
        self.graphs = {size: self.capture(size) for size in sizes}

    def capture(self, size):
        self.square(self.rows[:size])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.square(self.rows[:size])
        return graph, out

    def __call__(self, rows):
        self.rows[: len(rows)].copy_(rows)
        graph, out = self.graphs[len(rows)]
        graph.replay()
        return out.clone()
