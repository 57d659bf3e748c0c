"""Fresh metadata for each pass, but all of it holds the one scheduler object of the builder.

Stands for vllm-project/vllm#42444: warm-up runs the planner and fills the object, capture takes
the branch that reuses it, the planner's kernel is not recorded, and the replay reads an old plan.
"""

import torch


class SchedMeta:
    """Lazily filled, in slots, as an extension's object would be."""

    __slots__ = ("num_splits", "tile_metadata")

    def __init__(self):
        self.tile_metadata = None
        self.num_splits = None


class DecodeMetadata:
    def __init__(self, seq_lens, scheduler):
        self.seq_lens = seq_lens
        self.scheduler = scheduler


def flash_mla(query, metadata):
    scheduler = metadata.scheduler
    if scheduler.tile_metadata is None:
        scheduler.num_splits = (metadata.seq_lens + 15) // 16
        scheduler.tile_metadata = scheduler.num_splits.cumsum(0)
    return query * scheduler.tile_metadata[:, None] / scheduler.num_splits[:, None]


class Builder:
    """Builds a decode's metadata from the persistent lengths."""

    def __init__(self, seq_lens):
        self.seq_lens = seq_lens
        self.scheduler = SchedMeta()

    def build(self):
        return DecodeMetadata(self.seq_lens, SchedMeta())


class GraphManager:
    def __init__(self, rows, width):
        self.query = torch.zeros(rows, width, device="cuda")
        self.seq_lens = torch.ones(rows, dtype=torch.int64, device="cuda")
        self.builder = Builder(self.seq_lens)
        with torch.inference_mode():
            flash_mla(self.query, self.builder.build())
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=torch.cuda.graph_pool_handle()):
                self.out = flash_mla(self.query, self.builder.build())

    @torch.inference_mode()
    def decode(self, query, seq_lens):
        self.query.copy_(query)
        self.seq_lens.copy_(seq_lens)
        self.graph.replay()
        return self.out.clone()
