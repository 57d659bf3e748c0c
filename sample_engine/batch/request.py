"""Requests, from what a caller asks to what it gets. Plain values: no tensors, no scheduling."""

from __future__ import annotations

import dataclasses
import enum

from sample_engine.batch.sampling_params import SamplingParams

__all__ = ["NULL_BLOCK", "FinishReason", "Request", "RequestStatus"]

NULL_BLOCK = 0  # the block that is no request's: it stands in tables where there is none


class RequestStatus(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waits again; all that it had computed is to be computed anew
    FINISHED = "finished"


class FinishReason(str, enum.Enum):
    """Why a request ended."""

    STOP = "stop"  # a stop string or the end-of-text token
    LENGTH = "length"  # max_tokens, or the model's context is full
    ABORT = "abort"  # the caller's wish
    ERROR = "error"  # it could not run or go on; the output's ``error`` says why


@dataclasses.dataclass
class Request:
    """A request inside the engine core. The scheduler alone changes it.

    ``num_computed_tokens`` of its tokens have keys and values in the cache, or get them in a step
    that was scheduled. ``num_output_placeholders`` tokens are to come from such steps: they are
    fed from one step to the next on the device, and nobody knows them here yet. ``draft_token_ids``
    are a speculator's guesses of what comes next; they are verified in the next step.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int  # params.seed, or one that the engine drew
    arrival: int  # a running number: first come, first served
    output_token_ids: list[int] = dataclasses.field(default_factory=list)
    draft_token_ids: list[int] = dataclasses.field(default_factory=list)
    block_ids: list[int] = dataclasses.field(default_factory=list)
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    num_cached_tokens: int = 0  # of those, found in the prefix cache when it was first scheduled
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_type: str | None = None  # the name of its class in ``sample_engine.errors``

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output; without drafts."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_expected_tokens(self) -> int:
        """Tokens of prompt and output once the steps that were scheduled have said theirs."""
        return self.num_tokens + self.num_output_placeholders

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens ``start`` to ``stop`` of prompt, output and drafts in a row."""
        found: list[int] = []
        for tokens in (self.prompt_token_ids, self.output_token_ids, self.draft_token_ids):
            # Only what is asked for is copied: most often one token of a long text.
            found += tokens[max(start, 0) : max(stop, 0)]
            start -= len(tokens)
            stop -= len(tokens)
        return found
