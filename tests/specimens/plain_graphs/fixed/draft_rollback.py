"""After a rejected draft the recurrent state is restored in eager code, and not in a replay.

A variation on spiritbuun/buun-llama-cpp#116, whose thread names no cause.
"""

import torch


class Drafter:
    """Keeps a recurrent state, and a copy of it from before the draft."""

    def __init__(self, width):
        self.token = torch.zeros(width, device="cuda")
        self.state = torch.zeros(width, device="cuda")
        self.saved = torch.zeros(width, device="cuda")
        self.rejected = torch.zeros(1, dtype=torch.bool, device="cuda")
        self.was_rejected = False
        self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.step()
        self.state.zero_()
        self.saved.zero_()

    def start(self):
        return torch.where(self.rejected, self.saved, self.state)

    def step(self):
        before = self.start().clone()
        self.saved.copy_(before)
        self.state.copy_(torch.tanh(before + self.token))
        return self.state * 1.0

    def __call__(self, token, rejected):
        self.token.copy_(token)
        self.was_rejected = rejected
        self.rejected.fill_(rejected)
        self.graph.replay()
        return self.out.clone()
