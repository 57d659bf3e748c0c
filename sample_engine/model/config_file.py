"""From a model's name to its shape, read from ``config.json`` and checked.

It imports no torch, so that a front end can ask before it starts a core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sample_engine.errors import ConfigError
from sample_engine.model.config import LLAMA_3_8B, LlamaConfig, is_above_zero, is_count
from sample_engine.model.families import family_of
from sample_engine.model.rope_settings import read_rope
from sample_engine.model.settings_file import is_there, read_settings, why_no_file

__all__ = ["TINY_FOLDER", "is_shape_alone", "read_config"]

TINY_FOLDER = Path(__file__).parent / "tiny"
_SHAPES = {"llama-3-8b": LLAMA_3_8B}

_MOST_LAYERS = 1024  # each is made before weights are read
_MOST_NUMBERS = 1 << 48  # of a tensor

_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def is_shape_alone(model: str) -> bool:
    """Whether a model is a shape that comes without weights."""
    return model in _SHAPES


def read_config(model: str) -> LlamaConfig:
    """Return the shape of a model. Raises :class:`ConfigError` where there is none, or no Llama."""
    if model in _SHAPES:
        return _SHAPES[model]
    _must_have_utf8(model)
    path = (TINY_FOLDER if model == "tiny" else Path(model)) / "config.json"
    why = why_no_file(path)
    if why:
        raise ConfigError(f"model={model!r} cannot be used: {str(path)!r} {why}")
    if not is_there(path):
        raise ConfigError(
            f"model={model!r} is not one of 'tiny', {', '.join(map(repr, _SHAPES))}, and no folder "
            f"with a config.json ({str(path)!r} is not there)."
        )
    values = read_settings(path)
    generation = path.with_name("generation_config.json")
    if is_there(generation):  # it knows all the tokens that end a text, config.json often one
        eos = read_settings(generation).get("eos_token_id")
        if eos is not None:
            values["eos_token_id"] = eos
            wrong = _wrong_eos(values)
            if wrong:
                raise ConfigError(f"{str(generation)!r} cannot be used: {wrong[0]}.")
    return _config_of(values, str(path))


def _must_have_utf8(model: str) -> None:
    try:
        model.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"model={model!r} has no UTF-8, in which the libraries that read weights and "
            "tokenizers take names: rename the folder, or name a symbolic link to it."
        ) from None


def _config_of(values: dict[str, Any], path: str) -> LlamaConfig:
    """Build the configuration of a ``config.json`` of Hugging Face's, of today or of before."""
    family, wrong = family_of(values)
    if family is not None:
        values = {**family.usual, **values}
        wrong += family.refused(values)
    rope, wrong_rope = read_rope(values)
    wrong += wrong_rope
    wrong += [f"{name} is missing" for name in _COUNTS if name not in values]
    if not wrong:
        heads = values["num_attention_heads"]
        if values.get("num_key_value_heads") is None:
            values["num_key_value_heads"] = heads
        if values.get("head_dim") is None and is_count(heads) and is_count(values["hidden_size"]):
            values["head_dim"] = values["hidden_size"] // heads
        wrong += _wrong_values(values)
    windows: tuple[int | None, ...] = ()
    if not wrong and family is not None:
        windows, wrong = family.windows(values)
    if wrong or rope is None or family is None:
        raise ConfigError(f"{path!r} describes no model that the engine runs: {'; '.join(wrong)}.")
    names = (*_COUNTS, "num_key_value_heads", "head_dim")
    shape: dict[str, Any] = {name: values.get(name) for name in names}
    turned = None
    if rope.part < 1:
        turned = _even(int(shape["head_dim"] * rope.part), path)
    eos = values.get("eos_token_id")
    return LlamaConfig(
        **shape,
        eos_token_id=tuple(eos) if isinstance(eos, list) else eos,
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        rotary_dim=turned,
        rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        windows=windows,
    )


def _even(turned: int, path: str) -> int:
    if turned < 2 or turned % 2:
        raise ConfigError(
            f"{path!r} describes no model that the engine runs: with its partial_rotary_factor "
            f"RoPE would turn {turned} numbers of a head; it turns pairs."
        )
    return turned


def _wrong_values(values: dict[str, Any]) -> list[str]:
    wrong = [
        f"{name}={values.get(name)!r} must be a whole number of at least 1"
        for name in (*_COUNTS, "num_key_value_heads", "head_dim")
        if not is_count(values.get(name))
    ]
    if not wrong and values["num_hidden_layers"] > _MOST_LAYERS:
        wrong.append(f"num_hidden_layers={values['num_hidden_layers']} is more than {_MOST_LAYERS}")
    if not wrong:
        wrong += _too_large(values)
    eps = values.get("rms_norm_eps", 1e-6)
    if not is_above_zero(eps):
        wrong.append(f"rms_norm_eps={eps!r} must be a number above 0 that a float32 holds")
    tied = values.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        wrong.append(f"tie_word_embeddings={tied!r} must be true or false")
    return wrong + _wrong_eos(values)


def _too_large(values: dict[str, Any]) -> list[str]:
    """Which weights have more numbers than a tensor can, a line each."""
    heads = values["num_attention_heads"] + 2 * values["num_key_value_heads"]
    rows = {
        "vocab_size": values["vocab_size"],
        "intermediate_size": 2 * values["intermediate_size"],
        "head_dim": heads * values["head_dim"],
    }
    return [
        f"{name}={values[name]} and hidden_size={values['hidden_size']} make weights of "
        f"{count * values['hidden_size']} numbers, more than any machine holds"
        for name, count in rows.items()
        if count * values["hidden_size"] > _MOST_NUMBERS
    ]


def _wrong_eos(values: dict[str, Any]) -> list[str]:
    eos = values.get("eos_token_id")
    each = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in each):
        return [f"eos_token_id={eos!r} must be a token, a list of tokens, or null"]
    size = values.get("vocab_size")
    if isinstance(size, int) and not all(0 <= token < size for token in each):
        return [f"eos_token_id={eos!r} is not among the vocab_size={size!r} tokens"]
    return []
