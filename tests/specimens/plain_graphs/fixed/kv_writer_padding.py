"""The KV writer takes the number of tokens from the padded key, and slot -1 is the cache's end.

Stands for vllm-project/vllm#13418: ``reshape_and_cache`` read ``key.size(0)``.
"""

import torch

TOKENS, WIDTH = 6, 8


def reshape_and_cache(key, slot_mapping, cache):
    slots = slot_mapping.clamp(min=0)  # slot 0 is nobody's
    cache.index_copy_(0, slots, key)


class GraphRunner:
    """Writes keys to their slots; a padded token's slot is -1."""

    def __init__(self, cache):
        self.cache = cache
        self.key = torch.zeros(TOKENS, WIDTH, device="cuda")
        self.slot_mapping = torch.full((TOKENS,), -1, device="cuda")
        reshape_and_cache(self.key, torch.zeros_like(self.slot_mapping), self.cache)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            reshape_and_cache(self.key, self.slot_mapping, self.cache)

    def __call__(self, key, slots):
        self.slot_mapping.fill_(-1)
        self.slot_mapping[: len(slots)].copy_(slots)
        self.key[: len(key)].copy_(key)
        self.graph.replay()
        return self.cache[1:].clone()
