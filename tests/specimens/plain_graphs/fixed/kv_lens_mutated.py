"""The forward lengthens the KV lengths it is given, and nobody gives the requests theirs back.

Stands for NVIDIA/TensorRT-LLM#15913: lengths grow with every warm-up, the page table does not. The
graph is captured when the first decode comes, with the lengths of living requests.
"""

import torch
from paged import BLOCK, paged_attention


class Runner:
    """Decodes requests; the forward counts the new token itself."""

    def __init__(self, cache, page_table, kv_lens):
        self.cache, self.page_table, self.kv_lens = cache, page_table, kv_lens
        self.query = torch.zeros(len(kv_lens), cache.shape[1], device="cuda")
        self.graph = None

    def forward(self):
        self.kv_lens.add_(1)
        return paged_attention(self.query, self.cache, self.page_table, self.kv_lens)

    def capture(self):
        before = self.kv_lens.clone()
        self.forward()
        self.kv_lens.copy_(before)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward()

    def decode(self, query):
        self.query.copy_(query)
        if self.graph is None:
            self.capture()
        self.graph.replay()
        return self.out.clone()
