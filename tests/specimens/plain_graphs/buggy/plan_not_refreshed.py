"""Before a replay the page table is refreshed, the plan is not.

Stands for alibaba/rtp-llm#378 and alibaba/rtp-llm#1084: FlashInfer's plan has to be made again for
the new lengths, into the buffers the graph reads.
"""

import torch
from paged import BLOCK, paged_attention


class Wrapper:
    """In FlashInfer's manner: ``plan`` on the host, then ``run``."""

    def __init__(self, rows):
        self.kv_lens = torch.zeros(rows, dtype=torch.int64, device="cuda")

    def plan(self, indptr, last_page_len):
        """Plan from where the pages of each request begin, and how full its last page is."""
        pages = indptr.cpu().diff()
        kv_lens = (pages - 1) * BLOCK + last_page_len.cpu()  # capture: named
        self.kv_lens.copy_(kv_lens)  # capture: named

    def run(self, query, cache, page_table):
        return paged_attention(query, cache, page_table, self.kv_lens)


class Decoder:
    def __init__(self, cache, rows, pages):
        self.cache = cache
        self.wrapper = Wrapper(rows)
        self.query = torch.zeros(rows, cache.shape[1], device="cuda")
        self.page_table = torch.zeros(rows, pages, dtype=torch.int64, device="cuda")
        self.indptr = torch.arange(rows + 1, device="cuda")
        self.last_page_len = torch.ones(rows, dtype=torch.int64, device="cuda")
        self.wrapper.plan(self.indptr, self.last_page_len)
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward()

    def forward(self):
        return self.wrapper.run(self.query, self.cache, self.page_table)

    def prepare(self, page_table, seq_lens):
        """Make ready for the replay of a step with these lengths."""
        self.page_table.copy_(page_table)
        self.indptr[1:].copy_(((seq_lens + BLOCK - 1) // BLOCK).cumsum(0))
        self.last_page_len.copy_((seq_lens - 1) % BLOCK + 1)

    def __call__(self, query, page_table, seq_lens):
        self.prepare(page_table, seq_lens)
        self.query.copy_(query)
        self.graph.replay()
        return self.out.clone()
