"""What is said of a request: by the engine core after a step, in tokens; to a caller, in text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sample_engine.batch.request import FinishReason
from sample_engine.errors import EngineError, KVTransferError, NotFiniteError, PromptError

__all__ = [
    "CompletionOutput",
    "CoreOutput",
    "Logprob",
    "RequestOutput",
    "TokenLogprobs",
    "error_of_request",
    "joined",
]

_ERRORS: tuple[type[EngineError], ...] = (PromptError, KVTransferError, NotFiniteError)


@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
    """Of one generated token, and then of the most likely ones in its place, in descending order.

    The token itself comes again among these if it is one of them.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int  # of the token itself; 1: none is more likely


@dataclasses.dataclass(frozen=True)
class CoreOutput:
    """What is new of one request. With a ``finish_reason`` it is the last that is said of it."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None  # why a request ended with FinishReason.ERROR
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each new token, where they were asked for
    error_type: str | None = None  # the name of the error's class in ``sample_engine.errors``


@dataclasses.dataclass(frozen=True)
class Logprob:
    """How likely a token was: the natural logarithm of its probability, and its place in line.

    ``token_bytes``: what it adds to a text in UTF-8. Of a part of a character ``decoded_token`` is
    U+FFFD.
    """

    logprob: float
    rank: int
    decoded_token: str
    token_bytes: bytes = b""


@dataclasses.dataclass(frozen=True)
class CompletionOutput:
    """One completion of a prompt: all of it so far, or, from a stream, what is new.

    ``text`` ends before a stop string; ``token_ids`` are all tokens that were generated.
    ``logprobs`` has for each of them a mapping from tokens to how likely they were, the generated
    one among them; ``cumulative_logprob`` is the sum of those of the generated ones. Both are None
    where they were not asked for. ``stop_reason``: the stop string or the token that ended it.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    cumulative_logprob: float | None = None
    error: str | None = None
    error_type: str | None = None  # the name of the error's class in ``sample_engine.errors``

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """What a caller gets of a prompt: its completions so far; from a stream, what is new of one.

    ``text``, ``token_ids``, ``finish_reason`` and ``error`` are those of the first completion, and
    most often of the only one.
    """

    request_id: str
    prompt: str | None  # None: it was given as tokens
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def text(self) -> str:
        """The text of the first completion."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of the first completion."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first completion ended."""
        return self.outputs[0].finish_reason

    @property
    def error(self) -> str | None:
        """Why the first completion that ended with ``ERROR`` did."""
        return next((one.error for one in self.outputs if one.error is not None), None)

    @property
    def error_type(self) -> str | None:
        """The name of that error's class: PromptError, KVTransferError, NotFiniteError."""
        return next((one.error_type for one in self.outputs if one.error is not None), None)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return all(one.finished for one in self.outputs)


def joined(parts: Sequence[RequestOutput]) -> RequestOutput:
    """Return the output of a prompt, of those with one of its completions each."""
    return dataclasses.replace(
        parts[0],
        outputs=tuple(completion for part in parts for completion in part.outputs),
        num_cached_tokens=max(part.num_cached_tokens for part in parts),
        num_preemptions=sum(part.num_preemptions for part in parts),
    )


def error_of_request(error_type: str | None, words: str | None) -> EngineError:
    """Return the error that a request ended with, of the class that its output names."""
    for each in _ERRORS:
        if each.__name__ == error_type:
            return each(words)
    return EngineError(words)
