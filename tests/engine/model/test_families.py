"""The families of models: which there are, and the windows of their layers."""

from __future__ import annotations

from typing import Any

import pytest

from sample_engine.model.families import FAMILIES, family_of


def windows(model_type: str, **values: Any) -> Any:
    """The windows of a model of four layers; the words where they are refused."""
    family, wrong = family_of({"model_type": model_type})
    assert family is not None
    assert not wrong
    found, wrong = family.windows({**family.usual, "num_hidden_layers": 4, **values})
    return wrong[0] if wrong else found


def test_each_is_found_by_its_names() -> None:
    for family in FAMILIES:
        names = {"model_type": family.model_type, "architectures": [family.architecture]}
        assert family_of(names) == (family, [])
    assert family_of({})[0] is FAMILIES[0]
    wrong = {"model_type": "qwen2", "architectures": ["LlamaForCausalLM"]}
    assert family_of(wrong)[0] is None
    assert "only ['Qwen2ForCausalLM']" in family_of(wrong)[1][0]


def test_windows_are_where_the_family_has_them() -> None:
    assert windows("llama", sliding_window=8) == ()
    assert windows("mistral") == (4096,) * 4
    assert windows("mistral", sliding_window=None) == ()
    assert windows("qwen2", sliding_window=8, max_window_layers=1) == ()
    asked = {"use_sliding_window": True, "sliding_window": 8}
    assert windows("qwen2", **asked, max_window_layers=1) == (None, 8, 8, 8)
    kinds = ["full_attention", "sliding_attention"] * 2
    assert windows("qwen3", **asked, layer_types=kinds) == (None, 8, None, 8)


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("qwen3", {"layer_types": [FULL] * 3}, "a word for each of the 4 layers"),
        ("qwen3", {"layer_types": 4}, "a word for each of the 4 layers"),
        ("qwen3", {"layer_types": [FULL] * 3 + ["linear_attention"]}, "has 'linear_attention'"),
        ("qwen3", {"layer_types": [SLIDING] * 4}, "but use_sliding_window is not true"),
        ("llama", {"layer_types": [SLIDING] * 4, "sliding_window": 8}, "'llama' has no windows"),
        (
            "mistral",
            {"layer_types": [SLIDING] * 4, "sliding_window": None},
            "but there is no sliding_window",
        ),
        ("mistral", {"layer_types": [FULL] * 4}, "but 'mistral' has none"),
        ("mistral", {"sliding_window": 0}, "sliding_window=0 must be a whole number"),
        ("mistral", {"sliding_window": "8"}, "sliding_window='8' must be a whole number"),
    ],
)
def test_windows_that_contradict_each_other_are_refused(
    kind: str, values: dict[str, Any], words: str
) -> None:
    assert words in windows(kind, **values)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_windows_are_asked_for_by_values_of_their_kind(kind: str) -> None:
    odd: list[Any] = ["false", [], {"rope_theta": 1.0}, 2]
    for wrong in odd:
        assert "must be true or false" in windows(kind, use_sliding_window=wrong)
    numbers: list[Any] = [None, "2", [FULL], {}, 1.5, True]
    for wrong in numbers:
        said = windows(kind, use_sliding_window=True, max_window_layers=wrong)
        assert "max_window_layers=" in said
        assert "must be a whole number" in said


@pytest.mark.parametrize("wrong", [None, "2", [FULL], {}])
def test_what_windows_nobody_asks_for_would_be_is_of_no_account(wrong: object) -> None:
    for kind in ("llama", "mistral"):
        assert windows(kind, max_window_layers=wrong, use_sliding_window="x") == windows(kind)
    assert windows("qwen2", max_window_layers=wrong) == windows("qwen2")
    types = {"use_sliding_window": True, "layer_types": [FULL, SLIDING] * 2}
    assert windows("qwen3", max_window_layers=wrong, **types) == windows("qwen3", **types)


def test_what_is_computed_in_one_way_only_is_refused_otherwise() -> None:
    family = FAMILIES[0]
    assert family.refused({"hidden_act": "silu", "mlp_bias": False}) == []
    assert family.refused({"hidden_act": "gelu", "num_experts": 8}) == [
        "hidden_act='gelu' is not supported, only 'silu'",
        "num_experts=8 is not supported, only None",
    ]
