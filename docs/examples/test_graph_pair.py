import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@dataclasses.dataclass
class Metadata:
    seq_lens: Any
    plan: Any = None  # made by the first forward


def attend(query, metadata):
    if metadata.plan is None:
        metadata.plan = 1.0 / metadata.seq_lens.float()
    return query * metadata.plan[:, None]


class Runner:
    def __init__(self, device):
        self.seq_lens = torch.tensor([1, 2, 4, 8], device=device)
        self.query = torch.randn(4, 8, device=device)
        self.states = {}

    def create_forward_fn(self, num_reqs, warmup):
        if num_reqs not in self.states:  # the bug: the capture gets what the warm-up has used
            self.states[num_reqs] = {"layers.0": Metadata(self.seq_lens[:num_reqs])}
        state = self.states[num_reqs]
        return lambda mode: attend(self.query[:num_reqs], state["layers.0"]), state


def test_warmup_and_capture_fit_together(capture_pair, graph_backend):
    runner = Runner(graph_backend.device)
    capture_pair(
        runner.create_forward_fn,
        4,
        persistent={"seq_lens": runner.seq_lens, "query": runner.query},
        vary=[lambda: runner.seq_lens.fill_(3)],
    )
