"""Persistent buffers have max_num_seqs rows, the graph was captured with more.

Stands for vllm-project/vllm#41016 and sgl-project/sglang#29695: a kernel walks past its buffer,
into the one that was allocated behind it.
"""

import torch

MAX_NUM_SEQS, CAPTURE_SIZE, SLOTS, WIDTH = 4, 8, 32, 8


class DecodeRunner:
    """Lengths and slots lie one behind the other in one allocation."""

    def __init__(self):
        self.rows = MAX_NUM_SEQS
        self.arena = torch.zeros(2 * CAPTURE_SIZE, dtype=torch.int64, device="cuda")
        self.slots = self.arena[self.rows : self.rows + CAPTURE_SIZE]
        self.hidden = torch.zeros(CAPTURE_SIZE, WIDTH, device="cuda")
        self.cache = torch.zeros(SLOTS, WIDTH, device="cuda")
        self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        seq_lens = torch.as_strided(self.arena, (CAPTURE_SIZE,), (1,))  # a pointer and a count
        seq_lens.add_(1)
        slots = self.slots.remainder(SLOTS)
        self.cache.zero_().index_copy_(0, slots, self.hidden * seq_lens[:, None])

    def __call__(self, hidden, seq_lens, slots):
        """Write keys of a batch; slot 0 is nobody's."""
        self.arena.zero_()
        self.arena[: len(seq_lens)].copy_(seq_lens)
        self.slots[: len(slots)].copy_(slots)
        self.hidden[: len(hidden)].copy_(hidden)
        self.graph.replay()
        return self.cache[1:].clone()
