"""A speculator's prefill graph reuses the target model's captured metadata for both passes.

Stands for vllm-project/vllm#44253. The draft layer plans lazily, once for each metadata object.
The warm-up plans; capture finds the flag set and leaves the planner out of the graph.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch


@dataclass
class TileScheduler:
    have_initialized: bool = False
    plan: torch.Tensor | None = None


@dataclass
class AttentionMetadata:
    seq_lens: torch.Tensor
    scheduler: TileScheduler = field(default_factory=TileScheduler)


class AttentionStatePair(NamedTuple):
    warmup: AttentionMetadata
    captured: AttentionMetadata


class TargetRunner:
    """Builds the states which the speculator is handed when the target's graphs are captured."""

    def __init__(self, capacity):
        self.seq_lens = torch.ones(capacity, dtype=torch.int64, device="cuda")

    def build(self, num_reqs):
        return AttentionMetadata(self.seq_lens[:num_reqs])

    def capture(self, sizes):
        return {size: AttentionStatePair(self.build(size), self.build(size)) for size in sizes}


def draft_layer(hidden, metadata):
    scheduler = metadata.scheduler
    if not scheduler.have_initialized:
        scheduler.plan = torch.reciprocal(metadata.seq_lens.float())
        scheduler.have_initialized = True
    return hidden * scheduler.plan[:, None]


class Speculator:
    """Captures its own prefill graphs with the states of the target."""

    def __init__(self, runner, sizes, width):
        self.runner = runner
        self.states = runner.capture(sizes)
        self.hidden = torch.zeros(max(sizes), width, device="cuda")
        self.out = torch.zeros_like(self.hidden)
        self.graphs = {}
        for size in sizes:
            pair = self.states[size]
            self.forward(size, pair.warmup)
            torch.cuda.synchronize()
            self.graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[size]):
                self.forward(size, pair.captured)

    def forward(self, size, metadata):
        self.out[:size] = draft_layer(self.hidden[:size], metadata)

    def propose(self, hidden, seq_lens):
        size = len(hidden)
        self.runner.seq_lens[:size].copy_(seq_lens)
        self.hidden[:size].copy_(hidden)
        self.graphs[size].replay()
        return self.out[:size].clone()
