"""Requests, from what a caller asks to what it gets. Plain values: no tensors, no scheduling."""

from __future__ import annotations

import dataclasses
import enum

from sample_engine.errors import PromptError

__all__ = [
    "FinishReason",
    "Request",
    "RequestOutput",
    "RequestStatus",
    "SamplingParams",
]


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
    ERROR = "error"  # it could never run; the output's ``error`` says why


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. ``temperature=0`` is greedy.

    ``top_k=0`` and ``top_p=1.0`` leave the distribution as it is. ``seed`` makes a request's
    tokens depend on nothing but the request: not on the batch, the chunks or a preemption.
    ``stop`` strings end the text before them. Raises :class:`PromptError` for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 64
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Refuse what no distribution can be made of."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif not isinstance(self.stop, tuple):
            object.__setattr__(self, "stop", tuple(self.stop))
        for wrong, words in (
            (not self.temperature >= 0, "temperature={0.temperature!r} must be 0 or more"),
            (self.top_k < 0, "top_k={0.top_k!r} must be 0 (all tokens) or more"),
            (not 0 < self.top_p <= 1, "top_p={0.top_p!r} must lie above 0 and at most at 1"),
            (self.max_tokens < 1, "max_tokens={0.max_tokens!r} must be at least 1"),
            (any(not text for text in self.stop), "stop={0.stop!r} holds an empty string"),
        ):
            if wrong:
                raise PromptError(f"SamplingParams: {words.format(self)}.")


@dataclasses.dataclass
class Request:
    """A request inside the engine core. The scheduler alone changes it.

    ``num_computed_tokens`` of its tokens have keys and values in the cache. ``draft_token_ids`` are
    a speculator's guesses of what comes next; they are verified in the next step.
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
    num_cached_tokens: int = 0  # of those, found in the prefix cache when it was first scheduled
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output; without drafts."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens ``start`` to ``stop`` of prompt, output and drafts in a row."""
        found: list[int] = []
        for tokens in (self.prompt_token_ids, self.output_token_ids, self.draft_token_ids):
            # Only what is asked for is copied: most often one token of a long text.
            found += tokens[max(start, 0) : max(stop, 0)]
            start -= len(tokens)
            stop -= len(tokens)
        return found


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """What a caller gets of a request: all of it so far, or, from a stream, what is new.

    ``text`` ends before a stop string; ``token_ids`` are all tokens that were generated.
    """

    request_id: str
    prompt: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None
