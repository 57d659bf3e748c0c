"""What one step and one request may take at most, and in words why a request is refused.

What is running and which blocks are free makes no difference here: the scheduler sees to that.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

from sample_engine.batch.request import Request
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import PromptError

__all__ = ["SchedulerLimits", "check_stop_tokens", "too_long", "vocabulary_tokens"]


def too_long(request_id: str, length: str, max_model_len: int) -> str:
    """Return what is said of a prompt of so many tokens that leaves no room for an answer."""
    return (
        f"Request {request_id!r} has a prompt of {length} tokens, but with max_model_len="
        f"{max_model_len} at most {max_model_len - 1} leave room for an answer: shorten the prompt."
    )


def vocabulary_tokens(request_id: str, tokens: Iterable[Any], vocab_size: int) -> list[int]:
    """Return a prompt's tokens as plain numbers. Raises :class:`PromptError` for others."""
    who = f"Request {request_id!r}"
    try:
        found = [operator.index(token) for token in tokens]
    except TypeError as error:
        raise PromptError(f"{who}: prompt_token_ids must be whole numbers: {error}.") from None
    if found and not (min(found) >= 0 and max(found) < vocab_size):
        wrong = next(token for token in found if not 0 <= token < vocab_size)
        raise PromptError(
            f"{who} has the token {wrong}, but the vocabulary goes from 0 to {vocab_size - 1}: "
            "encode the prompt with the model's own tokenizer."
        )
    return found


def check_stop_tokens(who: str, params: SamplingParams, vocab_size: int) -> None:
    """Raise :class:`PromptError` for a token to end with that no text can have."""
    for token in params.stop_token_ids:
        if token >= vocab_size:
            raise PromptError(
                f"{who}: stop_token_ids has {token}, but the vocabulary goes from 0 to "
                f"{vocab_size - 1}.",
                param="stop_token_ids",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """The limits that a scheduler keeps. All are known once the model is loaded."""

    num_blocks: int  # the null block included
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    eos_token_id: int | tuple[int, ...] | None = None  # those that end a text
    # A speculator keeps keys and values for so many tokens beyond those that a step computes ...
    lookahead: int = 0
    # ... and for a token they depend on the next one, too.
    sees_next_token: bool = False
    # Blocks for so many tokens more, those of the next step, are given where enough are free.
    ahead: int = 0

    def ends(self, token: int) -> bool:
        """Whether a token ends a text."""
        eos = self.eos_token_id
        return token in eos if isinstance(eos, tuple) else token == eos

    def most_tokens(self, request: Request) -> int:
        """Tokens of prompt and output at which a request ends."""
        if request.params.max_tokens is None:
            return self.max_model_len
        wished = len(request.prompt_token_ids) + request.params.max_tokens
        return min(wished, self.max_model_len)

    def most_drafts(self, request: Request) -> int:
        """How many drafts of a request the next step can verify, all of them together.

        It depends on nothing but the request: what else runs must not change which drafts are
        verified, or seeds would not give the same text. The token after the last draft comes
        without: with it no limit may be passed.
        """
        most = min(
            self.most_tokens(request) - request.num_tokens - 1,
            self._cache_tokens - request.num_tokens,
            self.max_num_batched_tokens - 1,
        )
        return max(0, most)

    def tokens_with_lookahead(self, request: Request, num_tokens: int) -> int:
        """Tokens that a request needs blocks for when a step computes it up to ``num_tokens``."""
        last = min(self.most_tokens(request) - 1, self._cache_tokens)
        return max(num_tokens, min(num_tokens + self.lookahead, last))

    def fits_cache(self, num_tokens: int) -> bool:
        """Whether the whole cache holds so many tokens."""
        return num_tokens <= self._cache_tokens

    def may_be_cut(self, num_tokens: int) -> bool:
        """Whether so many tokens that are to be computed may be spread over several steps.

        Without chunked prefill only if it cannot be helped: a request that was preempted may have
        become longer than a step.
        """
        return self.enable_chunked_prefill or num_tokens > self.max_num_batched_tokens

    def why_never(self, request: Request) -> str | None:
        """Why a new request could never run, in words; None: it can."""
        who = f"Request {request.request_id!r}"
        length = request.num_prompt_tokens
        if not length:
            return f"{who} has an empty prompt: at least one token is needed to go on from."
        if length >= self.max_model_len:
            return too_long(request.request_id, str(length), self.max_model_len)
        if not self.fits_cache(length):
            return f"{who} has a prompt of {length} tokens. {self._cache_words()}"
        if length > self.max_num_batched_tokens and not self.enable_chunked_prefill:
            return (
                f"{who} has a prompt of {length} tokens, more than max_num_batched_tokens="
                f"{self.max_num_batched_tokens}: raise it, or set enable_chunked_prefill=True."
            )
        return None

    def why_no_further(self, request: Request) -> str:
        """What is said of a request that has outgrown the whole cache."""
        return (
            f"Request {request.request_id!r} has grown to {request.num_tokens} tokens. "
            f"{self._cache_words()}"
        )

    @property
    def _cache_tokens(self) -> int:
        return (self.num_blocks - 1) * self.block_size

    def _cache_words(self) -> str:
        return (
            f"The whole KV cache holds {self._cache_tokens} ({self.num_blocks - 1} blocks of "
            f"{self.block_size}): raise num_blocks or gpu_memory_utilization, or ask for less."
        )
