"""What ``speculative_config`` may say, and how wrong values are told: by name, all at once."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest

from sample_engine import LLM, ConfigError, EngineConfig
from sample_engine.config import SPECULATIVE_METHODS, SpeculativeConfig
from sample_engine.speculate import registry

NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


def test_the_documented_settings_are_taken_as_they_are() -> None:
    settings = {**NGRAM, "prompt_lookup_max": 4, "prompt_lookup_min": 3}
    settings |= {"rejection_sample_method": "strict", "step_graphs": True}
    made = SpeculativeConfig.of(settings)
    assert made == SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=5,
        prompt_lookup_max=4,
        prompt_lookup_min=3,
        rejection_sample_method="strict",
        step_graphs=True,
    )
    assert SpeculativeConfig.of({"method": "eagle", "num_speculative_tokens": 1}) == (
        SpeculativeConfig(method="eagle", num_speculative_tokens=1)
    )


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, (5, 2)),
        ({"prompt_lookup_max": 1}, (1, 1)),
        ({"prompt_lookup_max": 9}, (9, 2)),
        ({"prompt_lookup_min": 4}, (5, 4)),
        ({"prompt_lookup_min": 7}, (7, 7)),
        ({"prompt_lookup_min": None, "prompt_lookup_max": None}, (5, 2)),
    ],
    ids=str,
)
def test_bounds_that_are_not_given_follow_those_that_are(
    given: dict[str, Any], bounds: tuple[int, int]
) -> None:
    made = SpeculativeConfig.of({**NGRAM, **given})
    assert (made.prompt_lookup_max, made.prompt_lookup_min) == bounds


def test_all_methods_are_listed() -> None:
    assert SPECULATIVE_METHODS == ("eagle", "ngram")
    assert tuple(sorted(registry._SPECULATORS)) == SPECULATIVE_METHODS


OLD = {**NGRAM, "ngram_prompt_lookup_max": 4, "ngram_prompt_lookup_min": 3}


@pytest.mark.parametrize(
    "make",
    [
        SpeculativeConfig.of,
        lambda settings: EngineConfig(speculative_config=settings),
        lambda settings: EngineConfig.of(speculative_config=settings),
    ],
    ids=["of", "EngineConfig", "EngineConfig.of"],
)
def test_old_names_work_and_the_line_that_uses_them_is_told(make: Any) -> None:
    with pytest.warns(DeprecationWarning, match="'ngram_prompt_lookup_m..' is called") as told:
        made = make(OLD)
    speculative = made if isinstance(made, SpeculativeConfig) else made.speculative
    assert (speculative.prompt_lookup_max, speculative.prompt_lookup_min) == (4, 3)
    assert [warning.filename for warning in told] == [__file__] * 2


def test_an_old_name_is_told_once_and_not_again_by_the_core() -> None:
    with pytest.warns(DeprecationWarning, match="is called 'prompt_lookup_m..' now"):
        config = EngineConfig(speculative_config=OLD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pickle.loads(pickle.dumps(config))
        assert again.speculative == config.speculative


WRONG: dict[str, tuple[Any, list[str]]] = {
    "no mapping": (
        "ngram",
        ["speculative_config='ngram' must be a dict", "This is text: json.loads makes a dict"],
    ),
    "nothing": (
        {},
        [
            "needs 'method': one of 'eagle', 'ngram'",
            "needs 'num_speculative_tokens': how many tokens",
        ],
    ),
    "unknown name": (
        {**NGRAM, "num_speculativ_tokens": 3},
        ["no setting 'num_speculativ_tokens'. Did you mean 'num_speculative_tokens'?"],
    ),
    "unknown method": (
        {**NGRAM, "method": "egale"},
        ["method='egale' is not one of 'eagle', 'ngram'. Did you mean 'eagle'?"],
    ),
    "unknown rejection": (
        {**NGRAM, "rejection_sample_method": "strikt"},
        ["rejection_sample_method='strikt' is not one of 'probabilistic', 'strict'. Did you mean"],
    ),
    "no truth value": (
        {**NGRAM, "step_graphs": 1},
        ["step_graphs=1 must be True or False"],
    ),
    "no number": (
        {**NGRAM, "num_speculative_tokens": "5"},
        ["num_speculative_tokens='5' must be an int of at least 1"],
    ),
    "zero": ({**NGRAM, "num_speculative_tokens": 0}, ["num_speculative_tokens=0 must be"]),
    "truth": ({**NGRAM, "num_speculative_tokens": True}, ["num_speculative_tokens=True must be"]),
    "bounds": (
        {**NGRAM, "prompt_lookup_max": 2, "prompt_lookup_min": 3},
        ["prompt_lookup_min=3 is more than prompt_lookup_max=2"],
    ),
    "other method's": (
        {"method": "eagle", "num_speculative_tokens": 2, "prompt_lookup_max": 2},
        ["'prompt_lookup_max' is of the method 'ngram', not of 'eagle'"],
    ),
    "the head's": (
        {**NGRAM, "draft_vocab_size": 32000},
        ["'draft_vocab_size' is of the method 'eagle', not of 'ngram'"],
    ),
    "no draft vocabulary": (
        {"method": "eagle", "num_speculative_tokens": 2, "draft_vocab_size": 0},
        ["draft_vocab_size=0 must be an int of at least 1"],
    ),
    "both names": (
        {**NGRAM, "prompt_lookup_max": 2, "ngram_prompt_lookup_max": 2},
        ["'ngram_prompt_lookup_max' and 'prompt_lookup_max', which is the same"],
    ),
    "several": (
        {"method": "medusa", "num_speculative_tokens": -1, "top": 1},
        ["no setting 'top'", "method='medusa' is not", "num_speculative_tokens=-1 must be"],
    ),
    "unhashable": ({**NGRAM, "method": ["ngram"]}, ["method=['ngram'] is not one of"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_by_name(name: str) -> None:
    settings, words = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        EngineConfig(speculative_config=settings)
    for each in words:
        assert each in str(caught.value)


def test_a_wrong_value_is_told_under_the_name_that_was_given() -> None:
    settings = {"method": "ngram", "num_speculative_tokens": 2, "ngram_prompt_lookup_max": 0}
    with pytest.raises(ConfigError, match=": ngram_prompt_lookup_max=0 must be an int"):
        SpeculativeConfig.of(settings, warn=False)


def test_a_step_must_hold_a_token_and_all_its_drafts() -> None:
    EngineConfig(speculative_config=NGRAM, max_num_batched_tokens=6)
    with pytest.raises(ConfigError, match=r"tokens=5 must be less than max_num_batched_tokens=5"):
        EngineConfig(speculative_config=NGRAM, max_num_batched_tokens=5)


def test_an_engine_refuses_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="is not one of 'eagle', 'ngram'"):
        LLM(speculative_config={"method": "dog", "num_speculative_tokens": 1})
