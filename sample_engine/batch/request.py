"""Requests, from what a caller asks to what it gets. Plain values: no tensors, no scheduling."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from sample_engine.errors import PromptError

__all__ = ["NULL_BLOCK", "FinishReason", "Request", "RequestStatus", "SamplingParams"]

NULL_BLOCK = 0  # the block that is no request's: it stands in tables where there is none


_Class = TypeVar("_Class", bound=type)
# What a message of the engine and a tensor of whole numbers hold.
_LEAST_INT64, _MOST_INT64, _MOST_UINT64 = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1


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


def _names_the_closest(kind: _Class) -> _Class:
    """Let a dataclass that is given an unknown parameter say which one may have been meant."""
    known = [field.name for field in dataclasses.fields(kind)]
    made: Any = kind.__init__  # type: ignore[misc]

    @functools.wraps(made)
    def init(self: object, *values: Any, **settings: Any) -> None:
        for name in settings:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(
                    f"{kind.__name__} has no parameter {name!r}.{hint} It has: "
                    f"{', '.join(sorted(known))}."
                )
        made(self, *values, **settings)

    kind.__init__ = init  # type: ignore[misc]
    return kind


@_names_the_closest
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. ``temperature=0`` is greedy.

    ``top_k=0`` and ``top_p=1.0`` leave the distribution as it is. ``seed`` makes a request's
    tokens depend on nothing but the request: not on the batch, the chunks or a preemption.
    ``stop`` strings end the text before them. Raises :class:`PromptError` for a value of another
    type or out of range, and :class:`TypeError` for an unknown parameter.
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
        stop: Any = self.stop
        if isinstance(stop, str):
            object.__setattr__(self, "stop", (stop,))
        elif isinstance(stop, Iterable) and not isinstance(stop, (bytes, bytearray, Mapping)):
            object.__setattr__(self, "stop", tuple(stop))
        wrong = _wrong_params(self)
        if wrong:
            raise PromptError("\n".join(f"SamplingParams: {line}." for line in wrong))


def _wrong_params(params: SamplingParams) -> list[str]:
    """What is wrong with the values, a line each."""
    rules = {
        "temperature": (
            _is_number(params.temperature) and params.temperature >= 0,
            "a number of 0 or more",
        ),
        "top_k": (
            _is_whole(params.top_k) and 0 <= params.top_k <= _MOST_INT64,
            "0 (all tokens) or more, and a whole number below 2^63",
        ),
        "top_p": (
            _is_number(params.top_p) and 0 < params.top_p <= 1,
            "a number above 0 and at most 1",
        ),
        "seed": (
            params.seed is None
            or (_is_whole(params.seed) and _LEAST_INT64 <= params.seed <= _MOST_UINT64),
            "a whole number from -2^63 to 2^64 - 1, or None",
        ),
        "stop": (_is_stop(params.stop), "a str or several, none of them empty, each with UTF-8"),
        "max_tokens": (
            _is_whole(params.max_tokens) and 1 <= params.max_tokens <= _MOST_INT64,
            "at least 1, and a whole number below 2^63",
        ),
        "ignore_eos": (isinstance(params.ignore_eos, bool), "True or False"),
    }
    return [
        f"{name}={getattr(params, name)!r} must be {rule}"
        for name, (right, rule) in rules.items()
        if not right
    ]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return (_is_whole(value) or isinstance(value, float)) and not math.isnan(value)
    except OverflowError:
        return False


def _is_stop(value: object) -> bool:
    """Whether it is texts that can be looked for: a lone surrogate never occurs in a text."""
    if not isinstance(value, tuple):
        return False
    try:
        return all(isinstance(text, str) and bool(text.encode()) for text in value)
    except UnicodeEncodeError:
        return False


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
