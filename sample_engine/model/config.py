"""The shape of a model of Llama's kind, and the shape of Llama 3 8B."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sample_engine.errors import ConfigError

__all__ = [
    *("LARGEST_COUNT", "LLAMA_3_8B", "SCALING_NEEDS"),
    *("LlamaConfig", "RopeScaling", "is_above_zero", "is_count"),
]

LARGEST_COUNT = (1 << 31) - 1
"""Of layers, tokens of a text and the like; more is no number of them."""
_LEAST_FLOAT32, _LARGEST_FLOAT32 = 2.0**-126, 2.0**127 * (2 - 2.0**-23)  # not subnormal


SCALING_NEEDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""The numbers that each kind of :class:`RopeScaling` needs; others have a usual value there."""


def is_above_zero(value: object) -> bool:
    """Whether a value of a configuration is a number above 0 that a float32 holds."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and _LEAST_FLOAT32 <= value <= _LARGEST_FLOAT32  # type: ignore[operator]


def is_count(value: object) -> bool:
    """Whether a value of a configuration is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_COUNT


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How RoPE's angles differ from those of ``rope_theta``.

    ``kind`` is one of these:

    - ``"linear"``: all positions are divided by ``factor``
    - ``"llama3"``: only slow turns are slowed down, by ``factor``; ``low_freq_factor`` and
      ``high_freq_factor`` say how many turns in ``original_max_position_embeddings`` are slow and
      fast
    - ``"yarn"``: the same with ``beta_slow`` and ``beta_fast``, and cosine and sine are multiplied
      by ``attention_factor``
    """

    kind: str
    factor: float
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True  # yarn's bounds are whole numbers of pairs

    def yarn_bounds(self, rotary_dim: int, theta: float) -> tuple[float, float]:
        """The pairs up to which nothing is slowed down, and from which all is."""

        def pair(turns: float) -> float:
            length = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return rotary_dim * math.log(length) / (2 * math.log(theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        return low, high if high != low else high + 0.001


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """A model's shape, under the names of Hugging Face's ``config.json``.

    What Mistral and Qwen have beside a Llama: ``qkv_bias`` (projections to queries, keys and values
    with a bias), ``qk_norm`` (queries and keys are normed, head by head), ``windows`` (for each
    layer how many tokens a query sees, itself included; None: all; empty: all in each layer).
    ``rotary_dim``: how many numbers of a head RoPE turns, the first ones; None: all.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    eos_token_id: int | tuple[int, ...] | None = None
    rope_scaling: RopeScaling | None = None
    rotary_dim: int | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit together."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim} must be even: RoPE turns pairs.")
        turned = self.rotary_dim
        if turned is not None and (turned % 2 or turned > self.head_dim):
            raise ConfigError(
                f"rotary_dim={turned} must be even and at most head_dim={self.head_dim}: RoPE "
                "turns pairs of a head's numbers."
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LlamaConfig:
        """The shape of plain values, as ``dataclasses.asdict`` and JSON make them of one.

        Raises :class:`ConfigError` for values of which no model can be made.
        """
        wrong = _wrong_values(values)
        if wrong:
            raise ConfigError("; ".join(wrong))
        scaling, eos = values.get("rope_scaling"), values.get("eos_token_id")
        return cls(
            **{
                **_with_floats(cls, values),
                "rope_scaling": (
                    RopeScaling(**_with_floats(RopeScaling, scaling)) if scaling else None
                ),
                "eos_token_id": tuple(eos) if isinstance(eos, list) else eos,
                "windows": tuple(values.get("windows", ())),
            }
        )

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        eos = self.eos_token_id
        if eos is None:
            return ()
        return eos if isinstance(eos, tuple) else (eos,)

    @property
    def longest_text(self) -> int:
        """Up to how many tokens RoPE tells positions apart as the model was made for.

        With ``"linear"`` and ``"yarn"`` that is ``factor`` times what it was before the scaling,
        which is all that ``max_position_embeddings`` says in many models.
        """
        scaling, known = self.rope_scaling, self.max_position_embeddings
        if scaling is None or scaling.kind not in ("linear", "yarn"):
            return known
        before = scaling.original_max_position_embeddings or known
        return max(known, int(min(before * scaling.factor, LARGEST_COUNT)))

    def windows_within(self, max_model_len: int) -> tuple[int | None, ...]:
        """The window of each layer; None where texts of so many tokens never fill it."""
        windows = self.windows or (None,) * self.num_hidden_layers
        return tuple(
            None if window is None or window >= max_model_len else window for window in windows
        )


def _wrong_values(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values of a shape, a line each."""
    if not isinstance(values, Mapping):
        return [f"{values!r} is no object"]
    fields = {field.name: field for field in dataclasses.fields(LlamaConfig)}
    wrong = [f"there is no {name!r} in a shape" for name in values if name not in fields]
    for name, field in fields.items():
        if name in values:
            if not _fits(str(field.type), values[name]):
                wrong.append(f"{name}={values[name]!r} is no value of it")
        elif field.default is dataclasses.MISSING:
            wrong.append(f"{name} is missing")
    return wrong


def _with_floats(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a class, of which JSON may have written some floats as whole numbers."""
    floats = {field.name for field in dataclasses.fields(kind) if field.type == "float"}
    return {name: float(each) if name in floats else each for name, each in values.items()}


def _fits(kind: str, value: Any) -> bool:
    """Whether a plain value is one of a field of this type."""
    if value is None:
        return kind.endswith("| None")
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "float":
        return is_above_zero(value)
    if kind.startswith("RopeScaling"):
        return _is_scaling(value)
    if kind.startswith("int | tuple"):  # tokens
        each = value if isinstance(value, list) else [value]
        return all(type(token) is int for token in each)
    if kind.startswith("tuple"):
        return isinstance(value, list) and all(each is None or is_count(each) for each in value)
    return is_count(value)


def _is_scaling(value: object) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        return False
    needed = SCALING_NEEDS.get(value["kind"])
    usual = {field.name: field.default for field in dataclasses.fields(RopeScaling)}
    numbers = {name: each for name, each in value.items() if name not in ("kind", "truncate")}
    if needed is None or not all(name in numbers for name in needed):
        return False
    right = all(
        name in usual and (is_above_zero(each) or (name not in needed and each == usual[name]))
        for name, each in numbers.items()
    )
    return right and isinstance(value.get("truncate", True), bool)


LLAMA_3_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
    rope_theta=500000.0,
    tie_word_embeddings=False,
)
