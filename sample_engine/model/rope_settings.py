"""RoPE's settings in a ``config.json``: of today (``rope_parameters``), of before, and both.

It imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from sample_engine.model.config import (
    LARGEST_COUNT,
    SCALING_NEEDS,
    RopeScaling,
    is_above_zero,
)

__all__ = ["Rope", "read_rope"]

_USUAL_THETA = 10000.0
# What each kind needs, and what it may have, some of which is found elsewhere where it is not said.
_NEEDS: Mapping[str, tuple[str, ...]] = {"default": (), "dynamic": ("factor",), **SCALING_NEEDS}
_MAY_HAVE: Mapping[str, tuple[str, ...]] = {
    "dynamic": ("original_max_position_embeddings",),
    "yarn": (
        *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
}
_OF_ALL = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
# What counts as not given where it is 0.
_MAY_BE_ZERO = ("mscale", "mscale_all_dim")
# The kinds for which it counts how long texts were at first.
_OF_A_LENGTH = ("llama3", "yarn")


class Rope(NamedTuple):
    """What of it a shape needs. ``part``: of each head, how much is turned."""

    theta: float
    part: float
    scaling: RopeScaling | None


def read_rope(values: Mapping[str, Any]) -> tuple[Rope | None, list[str]]:
    """RoPE of a ``config.json``, and what is wrong with it, a line each.

    A name that stands in two places must have one value: which of them counts is nobody's guess.
    """
    settings, wrong = _joined(values)
    kind = settings.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _NEEDS:
        wrong.append(f"rope_type={kind!r} is not supported, only {', '.join(map(repr, _NEEDS))}")
        return None, wrong
    may_have = _MAY_HAVE.get(kind, ())
    known = {*_OF_ALL, *_NEEDS[kind], *may_have}
    wrong += [
        f"{name} is no setting of rope_type={kind!r}" for name in settings if name not in known
    ]
    wrong += [
        f"rope_type={kind!r} needs {name}"
        for name in _NEEDS[kind]
        if name not in may_have and settings.get(name) is None
    ]
    wrong += _wrong_numbers(settings)
    if kind == "yarn":
        wrong += _wrong_truncate(values)
    if wrong:
        return None, wrong
    theta = float(settings.get("rope_theta") or _USUAL_THETA)
    part = settings.get("partial_rotary_factor")
    scaling = _scaling(kind, settings, values.get("max_position_embeddings"))
    if scaling is not None and scaling.kind == "yarn" and theta <= 1.0:
        return None, [f"rope_theta={theta:g} must be above 1 with rope_type='yarn'"]
    return Rope(theta, 1.0 if part is None else float(part), scaling), []


def _joined(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """All settings in one place, and those that contradict each other."""
    found: dict[str, Any] = {}
    wrong: list[str] = []
    where: dict[str, str] = {}

    def add(place: str, name: str, value: Any) -> None:
        name = "rope_type" if name == "type" else name
        if value is None:
            return
        if name in found and found[name] != value:
            wrong.append(
                f"{name} is {found[name]!r} in {where[name]} and {value!r} in {place}: conflicting"
            )
        found.setdefault(name, value)
        where.setdefault(name, place)

    for place in ("rope_parameters", "rope_scaling"):
        settings = values.get(place)
        if settings is None:
            continue
        if not isinstance(settings, Mapping):
            wrong.append(f"{place}={settings!r} must be an object, or null")
            continue
        if any(isinstance(value, Mapping) for value in settings.values()):
            wrong.append(f"{place} has other settings for each kind of layer: not supported")
            continue
        for name, value in settings.items():
            add(place, str(name), value)
    if values.get("rope_parameters") and values.get("rope_scaling"):
        kinds = [_kind_in(values[place]) for place in ("rope_parameters", "rope_scaling")]
        if kinds[0] != kinds[1] and not wrong:
            wrong.append(
                f"rope_parameters has rope_type={kinds[0]!r} and rope_scaling {kinds[1]!r}: "
                "conflicting"
            )
    beside = ["rope_theta", "partial_rotary_factor"]
    if found.get("rope_type") in _OF_A_LENGTH:
        beside.append("original_max_position_embeddings")
    for name in beside:
        add("config.json", name, values.get(name))
    return found, wrong


def _wrong_truncate(values: Mapping[str, Any]) -> list[str]:
    """What is neither true nor false. Null is not as if it were left out: elsewhere it is false."""
    places = [values.get(place) for place in ("rope_parameters", "rope_scaling")]
    given = [each.get("truncate", True) for each in places if isinstance(each, Mapping)]
    wrong = [each for each in given if not isinstance(each, bool)]
    return [f"truncate={each!r} must be true or false" for each in wrong[:1]]


def _kind_in(settings: Any) -> Any:
    if not isinstance(settings, Mapping):
        return None
    return settings.get("rope_type", settings.get("type", "default"))


def _wrong_numbers(settings: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in settings.items():
        if name in ("rope_type", "truncate") or value is None:
            continue
        if name in _MAY_BE_ZERO and value == 0:
            continue
        if not is_above_zero(value):
            found.append(f"{name}={value!r} must be a number above 0 that a float32 holds")
    length = settings.get("original_max_position_embeddings")
    if not found and length is not None and length > LARGEST_COUNT:
        found.append(f"original_max_position_embeddings={length!r} is longer than any text")
    part = settings.get("partial_rotary_factor")
    if not found and part is not None and part > 1:
        found.append(f"partial_rotary_factor={part!r} must be at most 1")
    factor = settings.get("factor")
    if not found and factor is not None and factor < 1:
        found.append(f"factor={factor!r} must be at least 1")
    low, high = settings.get("low_freq_factor"), settings.get("high_freq_factor")
    if not found and low is not None and high is not None and low >= high:
        found.append(f"low_freq_factor={low!r} must be less than high_freq_factor={high!r}")
    return found


def _scaling(kind: str, settings: Mapping[str, Any], longest: Any) -> RopeScaling | None:
    # "dynamic" differs from "default" only beyond max_position_embeddings, where no text may go.
    if kind in ("default", "dynamic"):
        return None
    factor = float(settings["factor"])
    original = settings.get("original_max_position_embeddings") or longest
    if kind == "linear":
        return RopeScaling(kind=kind, factor=factor)
    if kind == "llama3":
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_max_position_embeddings=original,
            low_freq_factor=float(settings["low_freq_factor"]),
            high_freq_factor=float(settings["high_freq_factor"]),
        )
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=float(settings.get("beta_fast") or 32),
        beta_slow=float(settings.get("beta_slow") or 1),
        attention_factor=_yarn_attention(settings, factor),
        truncate=bool(settings.get("truncate", True)),
    )


def _yarn_attention(settings: Mapping[str, Any], factor: float) -> float:
    given = settings.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    above, below = settings.get("mscale"), settings.get("mscale_all_dim")
    if above and below:
        return scale(above) / scale(below)
    return scale(1.0)
