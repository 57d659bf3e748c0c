"""The index of each request's last token is not padded: stale rows write over other tokens.

Stands for vllm-project/vllm#39773: EAGLE puts the sampled tokens at ``last_token_indices``, and the
graph does so for all rows it was captured with.
"""

import torch

ROWS, TOKENS = 4, 12
NOBODY = TOKENS  # the last place of the buffer belongs to no token


class Speculator:
    """Shifts the tokens of the target by one, for the drafter."""

    def __init__(self):
        self.input_ids = torch.zeros(TOKENS + 1, dtype=torch.int64, device="cuda")
        self.last_token_indices = torch.full((ROWS,), NOBODY, device="cuda")
        self.next_tokens = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
        self.shift()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.shift()

    def shift(self):
        shifted = torch.roll(self.input_ids, -1)
        shifted.index_copy_(0, self.last_token_indices, self.next_tokens)
        return shifted[:NOBODY] * 1

    def propose(self, input_ids, query_lens, next_tokens):
        count = len(query_lens)
        self.input_ids[:TOKENS].copy_(input_ids)
        self.last_token_indices[:count].copy_(query_lens.cumsum(0) - 1)  # capture: named
        self.next_tokens[:count].copy_(next_tokens)
        self.graph.replay()
        return self.out.clone()
