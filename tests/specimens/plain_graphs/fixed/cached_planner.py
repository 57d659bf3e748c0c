"""The planner's result is kept by ``functools.lru_cache``, under the number of requests.

A variation on vllm-project/vllm#42444: the warm-up plans, the capture finds the plan made.
"""

import functools

import torch


class DecodeBackend:
    """Plans from the lengths and attends with the plan."""

    def __init__(self, rows, width):
        self.seq_lens = torch.ones(rows, dtype=torch.int64, device="cuda")
        self.query = torch.zeros(rows, width, device="cuda")
        self.plan = functools.partial(self.make_plan)
        self.forward(rows)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward(rows)

    def make_plan(self, num_reqs):
        return torch.rsqrt(self.seq_lens[:num_reqs].float())

    def forward(self, num_reqs):
        plan = self.plan(num_reqs)
        return self.query * plan[:, None] + self.seq_lens[:, None]

    def decode(self, query, seq_lens):
        self.query.copy_(query)
        self.seq_lens.copy_(seq_lens)
        self.graph.replay()
        return self.out.clone()
