"""How the tokens of a request are chosen and when it ends, under vLLM's names."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeGuard, TypeVar

from sample_engine.batch.vllm_names import SAMPLING, take_out
from sample_engine.errors import PromptError

__all__ = ["MOST_LOGPROBS", "SamplingParams"]

MOST_LOGPROBS = 20  # as vLLM's default max_logprobs
_MOST_N = 1 << 14
_MINUS_ONE: Mapping[str, int | None] = MappingProxyType({"top_k": 0, "seed": None})  # as in vLLM

_Class = TypeVar("_Class", bound=type)
# What a message of the engine and a tensor of whole numbers hold.
_LEAST_INT64, _MOST_INT64, _MOST_UINT64 = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1


def _checks_names(kind: _Class) -> _Class:
    """Let a dataclass that is given an unknown parameter say which one may have been meant.

    Those that vLLM has and that ask for nothing are dropped.
    """
    known = [field.name for field in dataclasses.fields(kind)]
    made: Any = kind.__init__  # type: ignore[misc]

    @functools.wraps(made)
    def init(self: object, *values: Any, **settings: Any) -> None:
        settings, wrong = take_out(settings, SAMPLING)
        if wrong:
            raise PromptError("\n".join(f"{kind.__name__}: {line}" for line in wrong))
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


@_checks_names
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. ``temperature=0`` is greedy.

    ``top_k=0`` (or -1) and ``top_p=1.0`` leave the distribution as it is. ``seed`` (-1: none) makes
    a request's tokens depend on nothing but the request: not on the batch, the chunks or a
    preemption. ``stop`` strings end the text before them; a token of ``stop_token_ids`` is the last
    one, and none of the text. ``n`` completions are made of a prompt; with a ``seed`` the next one
    has the next seed. ``logprobs`` asks for the logarithm of each token's probability, before
    temperature, top-k and top-p, and for those of so many most likely ones. ``max_tokens=None``: as
    many as the model has room for. Raises :class:`PromptError` for a value of another type or out
    of range, and for what only vLLM can do, and :class:`TypeError` for an unknown parameter.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = 64
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no distribution can be made of."""
        for name in ("stop", "stop_token_ids"):
            given = getattr(self, name)
            object.__setattr__(self, name, () if given is None else _as_tuple(given))
        for name, nothing in _MINUS_ONE.items():
            given = getattr(self, name)
            if _is_whole(given) and given == -1:
                object.__setattr__(self, name, nothing)
        wrong = _wrong_params(self)
        if not wrong and self.n > 1 and self.temperature == 0:
            wrong["n"] = f"n={self.n} needs a temperature above 0: greedy texts are all the same"
        if wrong:
            lines = (f"SamplingParams: {line}." for line in wrong.values())
            raise PromptError("\n".join(lines), param=next(iter(wrong)))

    def of_completion(self, index: int) -> SamplingParams:
        """Return the parameters of one of the ``n`` completions."""
        if self.n == 1:
            return self
        # Of 64 bits, as the noise is: no next one is -1, which would be none.
        seed = None if self.seed is None else (self.seed + index) % (1 << 64)
        return dataclasses.replace(self, n=1, seed=seed)


def _wrong_params(params: SamplingParams) -> dict[str, str]:
    """What is wrong with the values: of each parameter a line."""
    rules = {
        "temperature": (
            _is_number(params.temperature) and params.temperature >= 0,
            "a number of 0 or more",
        ),
        "top_k": (
            _is_within(params.top_k, 0, _MOST_INT64),
            "0 or -1 (all tokens) or more, and a whole number below 2^63",
        ),
        "top_p": (
            _is_number(params.top_p) and 0 < params.top_p <= 1,
            "a number above 0 and at most 1",
        ),
        "seed": (
            params.seed is None or _is_within(params.seed, _LEAST_INT64, _MOST_UINT64),
            "a whole number from -2^63 to 2^64 - 1, or None",
        ),
        "stop": (_is_stop(params.stop), "a str or several, none of them empty, each with UTF-8"),
        "stop_token_ids": (
            isinstance(params.stop_token_ids, tuple)
            and all(_is_within(token, 0, _MOST_INT64) for token in params.stop_token_ids),
            "tokens: several whole numbers of at least 0",
        ),
        "max_tokens": (
            params.max_tokens is None or _is_within(params.max_tokens, 1, _MOST_INT64),
            "at least 1, and a whole number below 2^63, or None",
        ),
        "ignore_eos": (isinstance(params.ignore_eos, bool), "True or False"),
        "n": (_is_within(params.n, 1, _MOST_N), f"a whole number from 1 to {_MOST_N}"),
        "logprobs": (
            params.logprobs is None or _is_within(params.logprobs, 0, MOST_LOGPROBS),
            f"a whole number from 0 to {MOST_LOGPROBS}, or None",
        ),
    }
    return {
        name: f"{name}={getattr(params, name)!r} must be {rule}"
        for name, (right, rule) in rules.items()
        if not right
    }


def _as_tuple(value: Any) -> Any:
    """One text or several values as a tuple; what is neither stays, and is refused later."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, Mapping)):
        with contextlib.suppress(TypeError):  # a tensor without dimensions
            return tuple(value)
    return value


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_within(value: object, least: int, most: int) -> bool:
    return _is_whole(value) and least <= value <= most


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
