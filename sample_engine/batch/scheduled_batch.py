"""What passes between scheduler, model runner and scheduler again in one step. Values only.

One step is: ``Scheduler.schedule() -> ScheduledBatch``, ``ModelRunner.run(batch) ->
StepResult``, ``Scheduler.postprocess(batch, result) -> what is new for each request``. With
asynchronous steps a second batch is scheduled before the first one's result is there.
"""

from __future__ import annotations

import dataclasses

from sample_engine.batch.outputs import TokenLogprobs
from sample_engine.batch.request import Request

__all__ = ["NOT_FINITE", "ScheduledBatch", "ScheduledRequest", "StepResult"]

NOT_FINITE = -2
"""In the place of a token that could not be chosen: a logit is NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class ScheduledRequest:
    """The part of a request that is computed in this step: tokens ``start`` to ``start + count``.

    The last ``num_drafts`` of them are drafts to be verified. A request whose part ends before its
    last token is in the middle of its prompt: nothing is sampled for it.
    """

    request: Request
    start: int
    count: int
    num_drafts: int = 0
    # Whether the step reaches the request's last token, so that a new one is sampled. Kept: the
    # request may have got further when the result is there.
    samples: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """See how far the request is."""
        last = self.request.num_expected_tokens + self.num_drafts
        object.__setattr__(self, "samples", self.start + self.count == last)


@dataclasses.dataclass(frozen=True)
class ScheduledBatch:
    """One step's work, in the order in which its tokens are packed."""

    requests: tuple[ScheduledRequest, ...]
    number: int = 0  # of the engine's steps; one that computes nothing has none of its own

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(part.count for part in self.requests)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What the model said, for each request of the batch in its order.

    ``sampled``: the tokens that are certain now: none in the middle of a prompt, one plainly, up to
    ``num_drafts + 1`` with drafts; the last of them may be :data:`NOT_FINITE`. ``drafts``: guesses
    for the next step; empty without speculator.
    ``logprobs``: of the sampled tokens of requests that asked; empty where none of the batch did.
    """

    sampled: tuple[tuple[int, ...], ...]
    drafts: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
