"""What is said of a request: by the engine core after a step, in tokens; to a caller, in text."""

from __future__ import annotations

import dataclasses

from sample_engine.batch.request import FinishReason

__all__ = ["CoreOutput", "RequestOutput"]


@dataclasses.dataclass(frozen=True)
class CoreOutput:
    """What is new of one request. With a ``finish_reason`` it is the last that is said of it."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None  # why a request ended with FinishReason.ERROR


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
