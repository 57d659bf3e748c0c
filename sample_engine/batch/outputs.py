"""What the engine core says of a request after a step. Plain values, without text or tensors."""

from __future__ import annotations

import dataclasses

from sample_engine.batch.request import FinishReason

__all__ = ["CoreOutput"]


@dataclasses.dataclass(frozen=True)
class CoreOutput:
    """What is new of one request. With a ``finish_reason`` it is the last that is said of it."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None  # why a request ended with FinishReason.ERROR
