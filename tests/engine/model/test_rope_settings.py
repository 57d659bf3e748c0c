"""RoPE's settings: old and new names, what is missing, and entries that contradict each other."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from sample_engine.errors import ConfigError
from sample_engine.model.config import LLAMA_3_8B, SCALING_NEEDS, LlamaConfig, RopeScaling
from sample_engine.model.rope_settings import read_rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0}


def test_nothing_is_the_usual() -> None:
    assert read_rope({}) == ((10000.0, 1.0, None), [])
    empty = {"rope_parameters": None, "rope_scaling": None, "rope_theta": 5e5}
    assert read_rope(empty) == ((500000.0, 1.0, None), [])


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_a_scaling_is_read_from_both_names(place: str) -> None:
    rope, wrong = read_rope({place: LLAMA3, "rope_theta": 5e5})
    assert not wrong
    assert rope is not None
    assert (rope.theta, rope.scaling) == (5e5, RopeScaling(kind="llama3", **rest(LLAMA3)))


def rest(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "rope_type"}


def test_both_names_may_say_the_same() -> None:
    old = {**rest(LLAMA3), "type": "llama3"}
    rope, wrong = read_rope({"rope_parameters": {**LLAMA3, "rope_theta": 5.0}, "rope_scaling": old})
    assert not wrong
    assert rope is not None
    assert rope.theta == 5.0


def test_the_first_length_may_stand_beside_the_scaling() -> None:
    for kind in ({**LLAMA3}, {"rope_type": "yarn", "factor": 4.0}):
        kind.pop("original_max_position_embeddings", None)
        beside = {"original_max_position_embeddings": 32, "max_position_embeddings": 128}
        rope, wrong = read_rope({"rope_scaling": kind, **beside})
        assert not wrong
        assert rope is not None
        assert rope.scaling is not None
        assert rope.scaling.original_max_position_embeddings == 32
    _, wrong = read_rope({"rope_scaling": LLAMA3, **beside})
    assert "is 8192 in rope_scaling and 32 in config.json: conflicting" in wrong[0]
    assert read_rope(beside) == read_rope({})  # elsewhere it says nothing


def test_yarn_has_what_follows_from_its_factor() -> None:
    scaling: dict[str, Any] = {"type": "yarn", "factor": 4}
    rope, _ = read_rope({"rope_scaling": scaling, "max_position_embeddings": 64})
    assert rope is not None
    assert rope.scaling is not None
    assert rope.scaling.original_max_position_embeddings == 64
    assert rope.scaling.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    scaling |= {"mscale": 2.0, "mscale_all_dim": 1.0, "truncate": False}
    rope, _ = read_rope({"rope_scaling": scaling, "max_position_embeddings": 64})
    assert rope is not None
    assert rope.scaling is not None
    assert rope.scaling.attention_factor == pytest.approx(
        (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)
    )
    assert not rope.scaling.truncate
    for name in ("mscale", "mscale_all_dim"):
        rope, wrong = read_rope(
            {"rope_scaling": {**scaling, name: 0}, "max_position_embeddings": 64}
        )
        assert not wrong
        assert rope is not None
        assert rope.scaling is not None
        assert rope.scaling.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_dynamic_is_the_usual_for_the_texts_that_are_taken() -> None:
    rope, wrong = read_rope({"rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert (rope, wrong) == ((10000.0, 1.0, None), [])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
            "rope_theta is 500000.0 in rope_parameters and 10000.0 in config.json: conflicting",
        ),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": LLAMA3},
            "rope_type is 'default' in rope_parameters and 'llama3' in rope_scaling: conflicting",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": LLAMA3},
            "rope_parameters has rope_type='default' and rope_scaling 'llama3': conflicting",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2}},
            "rope_type is 'linear' in rope_scaling and 'dynamic' in rope_scaling: conflicting",
        ),
        ({"rope_scaling": {"type": "mrope"}}, "rope_type='mrope' is not supported, only 'default'"),
        ({"rope_scaling": {"type": ["yarn"]}}, "rope_type=['yarn'] is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "rope_type='linear' needs factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor=0.5 must be at least 1"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor='2' must be a number above"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2, "x": 1}},
            "x is no setting of rope_type=",
        ),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 5}}, "low_freq_factor=5 must be less than"),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn' must be an object, or null"),
        ({"rope_parameters": {"full_attention": {}}}, "other settings for each kind of layer"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor=1.5 must be at most 1"),
        ({"rope_theta": True}, "rope_theta=True must be a number above 0"),
        ({"rope_scaling": {**YARN, "truncate": None}}, "truncate=None must be true or false"),
        ({"rope_parameters": {**YARN, "truncate": 0}}, "truncate=0 must be true or false"),
        ({"rope_scaling": {**YARN, "truncate": "false"}}, "truncate='false' must be true or"),
        ({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}}, "must be above 1 with"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], words: str) -> None:
    rope, wrong = read_rope({"max_position_embeddings": 64, **values})
    assert rope is None
    assert any(words in line for line in wrong), wrong


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, needed in SCALING_NEEDS.items() for name in needed]
)
def test_what_a_kind_needs_is_missed_in_a_config_and_in_a_shape(kind: str, name: str) -> None:
    numbers = {each: LLAMA3[each] for each in SCALING_NEEDS[kind]}
    rope, wrong = read_rope({"rope_scaling": {"type": kind, **numbers}})
    assert not wrong
    assert rope is not None
    values = dataclasses.asdict(dataclasses.replace(LLAMA_3_8B, rope_scaling=rope.scaling))
    values["windows"] = list(values["windows"])
    assert LlamaConfig.of(values).rope_scaling == rope.scaling

    del numbers[name], values["rope_scaling"][name]
    with pytest.raises(ConfigError, match="rope_scaling="):
        LlamaConfig.of(values)
    rope, wrong = read_rope(
        {"rope_scaling": {"type": kind, **numbers}, "max_position_embeddings": 64}
    )
    if (kind, name) == ("yarn", "original_max_position_embeddings"):  # found elsewhere
        assert rope is not None
    else:
        assert wrong == [f"rope_type={kind!r} needs {name}"]
