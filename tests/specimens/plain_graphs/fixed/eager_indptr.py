"""Before a replay the eager path's index pointers are written, not the ones the graph captured.

Stands for sgl-project/sglang#37975: hidden until a kernel really read them.
"""

import torch


class Backend:
    """Has one buffer for eager steps and one for graphs."""

    def __init__(self, rows, kv):
        self.kv_sums = kv.cumsum(0)
        self.seq_lens = torch.ones(rows, dtype=torch.int64, device="cuda")
        self.kv_indptr = torch.zeros(rows + 1, dtype=torch.int64, device="cuda")
        self.graph_kv_indptr = torch.zeros(rows + 1, dtype=torch.int64, device="cuda")

    def init_forward_metadata_capture(self):
        self.graph_kv_indptr[1:] = self.seq_lens.cumsum(0)

    def init_forward_metadata_replay(self, seq_lens):
        self.seq_lens.copy_(seq_lens)
        self.graph_kv_indptr[1:] = self.seq_lens.cumsum(0)

    def decode(self, kv_indptr):
        return self.kv_sums[kv_indptr[1:]] - self.kv_sums[kv_indptr[:-1]]


class GraphRunner:
    def __init__(self, backend):
        self.backend = backend
        backend.init_forward_metadata_capture()
        backend.decode(backend.graph_kv_indptr)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = backend.decode(backend.graph_kv_indptr)

    def __call__(self, seq_lens):
        self.backend.init_forward_metadata_replay(seq_lens)
        self.graph.replay()
        return self.out.clone()
