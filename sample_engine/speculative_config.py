"""How an engine is asked to speculate: one frozen value, :class:`SpeculativeConfig`."""

from __future__ import annotations

import dataclasses
import difflib
import sys
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sample_engine.errors import ConfigError

__all__ = ["REJECTION_METHODS", "SPECULATIVE_METHODS", "SpeculativeConfig"]

SPECULATIVE_METHODS = ("eagle", "ngram")  # ``speculate.registry`` makes them
REJECTION_METHODS = ("probabilistic", "strict")

_OLD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "ngram_prompt_lookup_max": "prompt_lookup_max",
        "ngram_prompt_lookup_min": "prompt_lookup_min",
    }
)
_NGRAM_ONLY = ("prompt_lookup_max", "prompt_lookup_min")
_ONLY_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"ngram": _NGRAM_ONLY, "eagle": ("draft_vocab_size",)}
)
_USUAL_LOOKUP_MAX = 5
_USUAL_LOOKUP_MIN = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """How an engine speculates, under vLLM's names. :meth:`of` makes it and checks it.

    ``method="ngram"`` looks for earlier occurrences of the last ``prompt_lookup_max`` to
    ``prompt_lookup_min`` tokens; ``"eagle"`` drafts with the head that comes with the model.
    ``rejection_sample_method``: ``"probabilistic"`` accepts as many drafts as the target's
    distribution allows; ``"strict"`` only those that the model itself samples, so that a seed's
    text is the same as without speculation. ``step_graphs``: where the model's pass is a CUDA
    graph, verification and drafts of a step are one, too; False: they run one by one.
    ``draft_vocab_size``: tokens that a head of random weights guesses among; None: all.
    """

    method: str
    num_speculative_tokens: int
    prompt_lookup_max: int = _USUAL_LOOKUP_MAX
    prompt_lookup_min: int = _USUAL_LOOKUP_MIN
    rejection_sample_method: str = REJECTION_METHODS[0]
    step_graphs: bool = True
    draft_vocab_size: int | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, warn: bool = True) -> SpeculativeConfig:
        """The configuration of a mapping. ``warn``: tell of old names.

        Raises :class:`ConfigError` that says all that is wrong, by name.
        """
        if not isinstance(settings, Mapping):
            text = " This is text: json.loads makes a dict of it." * isinstance(settings, str)
            raise ConfigError(
                f"speculative_config={settings!r} must be a dict, for instance "
                f"{{'method': 'ngram', 'num_speculative_tokens': 5}}, or None.{text}"
            )
        values, wrong = _renamed(settings, warn=warn)
        old_names = {new: old for old, new in _OLD_NAMES.items() if old in settings}
        known = [field.name for field in dataclasses.fields(cls)]
        wrong += [_unknown_of_speculation(name, known) for name in values if name not in known]
        values = {name: values[name] for name in known if values.get(name) is not None}
        wrong += _missing_of_speculation(values)
        wrong += _wrong_speculative_values(
            values, {**dict(zip(known, known, strict=True)), **old_names}
        )
        if wrong:
            raise ConfigError("\n".join(wrong))
        return cls(**_completed(values))


def _renamed(settings: Mapping[str, Any], *, warn: bool) -> tuple[dict[str, Any], list[str]]:
    """The settings under the names of today, and what is wrong with that."""
    values, wrong = dict(settings), []
    for old, new in _OLD_NAMES.items():
        if old not in values:
            continue
        value = values.pop(old)
        if new in values:
            wrong.append(
                f"speculative_config has {old!r} and {new!r}, which is the same: drop one."
            )
            continue
        values[new] = value
        if warn:
            warnings.warn(
                f"speculative_config: {old!r} is called {new!r} now; the old name will go.",
                DeprecationWarning,
                stacklevel=_callers_level(),
            )
    return values, wrong


def _callers_level() -> int:
    """The ``stacklevel`` of the first line outside the engine, as seen from who asks."""
    package = __name__.partition(".")[0]
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _belongs(frame.f_globals.get("__name__"), package):
        frame, level = frame.f_back, level + 1
    return level


def _belongs(module: object, package: str) -> bool:
    # A dataclass' generated __init__ has the globals of its module.
    return isinstance(module, str) and (module == package or module.startswith(package + "."))


def _unknown_of_speculation(name: object, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"speculative_config has no setting {name!r}.{hint} It has: {', '.join(known)}."


def _missing_of_speculation(values: Mapping[str, Any]) -> list[str]:
    methods = ", ".join(map(repr, SPECULATIVE_METHODS))
    words = {
        "method": f"one of {methods}",
        "num_speculative_tokens": "how many tokens are guessed in a step",
    }
    return [
        f"speculative_config needs {name!r}: {what}."
        for name, what in words.items()
        if name not in values
    ]


def _wrong_speculative_values(values: Mapping[str, Any], given: Mapping[str, str]) -> list[str]:
    """What is wrong with the values that are there, a line each, under the names as ``given``."""
    wrong = []
    for name, allowed in (
        ("method", SPECULATIVE_METHODS),
        ("rejection_sample_method", REJECTION_METHODS),
    ):
        value = values.get(name, allowed[0])
        if value not in allowed:
            close = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            listed = ", ".join(map(repr, allowed))
            wrong.append(f"speculative_config: {name}={value!r} is not one of {listed}.{hint}")
    for name in ("num_speculative_tokens", *_NGRAM_ONLY, "draft_vocab_size"):
        value = values.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            wrong.append(
                f"speculative_config: {given[name]}={value!r} must be an int of at least 1."
            )
    if not isinstance(given_graphs := values.get("step_graphs", True), bool):
        wrong.append(f"speculative_config: step_graphs={given_graphs!r} must be True or False.")
    method = values.get("method")
    if method in SPECULATIVE_METHODS:
        wrong += [
            f"speculative_config: {given[name]!r} is of the method {other!r}, not of {method!r}: "
            "drop it."
            for other, names in _ONLY_OF.items()
            for name in names
            if other != method and name in values
        ]
    if not wrong and {*_NGRAM_ONLY} <= {*values}:
        most, least = (values[name] for name in _NGRAM_ONLY)
        if least > most:
            wrong.append(
                f"speculative_config: {given['prompt_lookup_min']}={least} is more than "
                f"{given['prompt_lookup_max']}={most}."
            )
    return wrong


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in what depends on another value: one bound of the n-grams where the other is given."""
    if "prompt_lookup_max" in values:
        values.setdefault("prompt_lookup_min", min(_USUAL_LOOKUP_MIN, values["prompt_lookup_max"]))
    elif "prompt_lookup_min" in values:
        values["prompt_lookup_max"] = max(_USUAL_LOOKUP_MAX, values["prompt_lookup_min"])
    return values
