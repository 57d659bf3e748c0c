"""A number is read from the device in the middle of a step.

Stands for vllm-project/vllm-ascend#16736 (LocalScalarDense) and microsoft/onnxruntime#15002.
"""

from __future__ import annotations

import torch

from tests.specimens.graphs.bench import Bench


class Sampler:
    """Scales logits by the largest one."""

    def temper(self, logits: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        probabilities = self.temper(logits).softmax(-1)
        return probabilities.gather(-1, tokens[:, None])


class Buggy(Sampler):
    """Fetches the number."""

    def temper(self, logits: torch.Tensor) -> torch.Tensor:
        largest = logits.abs().amax().item()  # graph: named
        return logits / largest


class Fixed(Sampler):
    """Leaves it where it is."""

    def temper(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / logits.abs().amax()


def check(form: type[Sampler], bench: Bench) -> None:
    sampler = form()
    logits, tokens = bench.randn(3, 16), bench.ints(0, 16, 3)
    bench.replay(
        sampler.forward,
        [logits, tokens],
        vary=[lambda: logits.copy_(bench.randn(3, 16)), lambda: tokens.copy_(bench.ints(0, 16, 3))],
    )
