"""A step that the device has been given: all that is left to do is to wait for what it says."""

from __future__ import annotations

import dataclasses

import torch

from sample_engine.batch.scheduled_batch import ScheduledBatch, StepResult
from sample_engine.batch.token_logprobs import logprobs_of
from sample_engine.batch.token_readout import TokensUnderWay

__all__ = ["StepUnderWay"]


@dataclasses.dataclass(frozen=True)
class StepUnderWay:
    """What a step of the model runner comes to, now or soon.

    ``found``: its result, where that had to be waited for already. Otherwise ``tokens`` are on
    their way, None where nothing was sampled; ``logits`` are there where logprobs are asked for.
    """

    batch: ScheduledBatch
    found: StepResult | None = None
    tokens: TokensUnderWay | None = None
    logits: torch.Tensor | None = None  # [N, V] float32

    def result(self) -> StepResult:
        """What the step came to. Waits for the device."""
        if self.found is not None:
            return self.found
        tokens = iter(self.tokens.wait() if self.tokens is not None else ())
        sampled = tuple((next(tokens),) if part.samples else () for part in self.batch.requests)
        if self.logits is None:
            return StepResult(sampled, ())
        with torch.inference_mode():
            return StepResult(sampled, (), logprobs_of(self.batch, sampled, self.logits))
