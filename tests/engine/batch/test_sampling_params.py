"""Sampling parameters are refused when they are given, by name and with the rule."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import numpy
import pytest
import torch

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import PromptError

SEED = "must be a whole number from -2^63 to 2^64 - 1, or None"


STOP = "must be a str or several, none of them empty, each with UTF-8"


TEMPERATURE = "must be a number of 0 or more"


TOP_P = "must be a number above 0 and at most 1"


TOP_K = "must be 0 or -1 (all tokens) or more, and a whole number below 2^63"


MAX_TOKENS = "must be at least 1, and a whole number below 2^63, or None"


TOKENS = "must be tokens: several whole numbers of at least 0"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("temperature", -0.5, TEMPERATURE),
        ("temperature", True, TEMPERATURE),
        ("temperature", "1", TEMPERATURE),
        ("temperature", None, TEMPERATURE),
        ("temperature", float("nan"), TEMPERATURE),
        ("temperature", 10**400, TEMPERATURE),
        ("top_k", -2, TOP_K),
        ("top_k", 1.5, TOP_K),
        ("top_k", False, TOP_K),
        ("top_k", 10**30, TOP_K),
        ("top_p", 0, TOP_P),
        ("top_p", 1.5, TOP_P),
        ("top_p", True, TOP_P),
        ("top_p", None, TOP_P),
        ("seed", "1", SEED),
        ("seed", 1.0, SEED),
        ("seed", True, SEED),
        ("seed", 2**64, SEED),
        ("seed", -(2**63) - 1, SEED),
        ("stop", [1], STOP),
        ("stop", b"x", STOP),
        ("stop", 5, STOP),
        ("stop", {"a": 1}, STOP),
        ("stop", "", STOP),
        ("stop", ["a", "\ud800"], STOP),
        ("max_tokens", 0, MAX_TOKENS),
        ("max_tokens", 1.5, MAX_TOKENS),
        ("max_tokens", 10**20, MAX_TOKENS),
        ("ignore_eos", "no", "must be True or False"),
        ("ignore_eos", 1, "must be True or False"),
        ("stop_token_ids", (1, -1), TOKENS),
        ("stop_token_ids", 7, TOKENS),
        ("stop_token_ids", (True,), TOKENS),
        ("n", 0, "must be a whole number from 1 to 16384"),
        ("n", 1.0, "must be a whole number from 1 to 16384"),
        ("logprobs", 21, "must be a whole number from 0 to 20, or None"),
        ("logprobs", True, "must be a whole number from 0 to 20, or None"),
    ],
)
def test_a_sampling_parameter_is_refused_when_it_is_given(name: str, value: Any, rule: str) -> None:
    shown = value
    if name == "stop" and isinstance(value, (str, list)):
        shown = (value,) if isinstance(value, str) else tuple(value)
    with pytest.raises(PromptError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == f"SamplingParams: {name}={shown!r} {rule}."


def test_all_that_is_wrong_with_sampling_parameters_is_said_at_once() -> None:
    with pytest.raises(PromptError, match=r"top_k=-2 .*\n.*top_p=2 .*"):
        SamplingParams(top_k=-2, top_p=2)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"temperature": float("inf")},
        {"top_k": 2**63 - 1, "top_p": 1},
        {"seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"max_tokens": 2**63 - 1},
        {"stop": ["a", "é"]},
        {"stop": []},
        {"stop_token_ids": [0, 2**63 - 1]},
        {"max_tokens": None},
        {"logprobs": 0},
    ],
    ids=str,
)
def test_values_at_the_ends_of_their_ranges_are_taken(values: dict[str, Any]) -> None:
    params = SamplingParams(**values)
    for name, value in values.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value)


def test_an_unknown_sampling_parameter_is_refused_with_the_closest_name() -> None:
    with pytest.raises(TypeError, match=r"'temprature'\. Did you mean 'temperature'\? It has: ig"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"has no parameter 'xyzzy'\. It has: ignore_eos, logprobs"):
        SamplingParams(xyzzy=1)  # type: ignore[call-arg]


def test_sampling_parameters_stay_a_plain_dataclass() -> None:
    params = SamplingParams(top_k=3, stop=("end",))
    assert pickle.loads(pickle.dumps(params)) == copy.copy(params) == params
    assert dataclasses.replace(params, top_k=4).stop == ("end",)
    names = list(inspect.signature(SamplingParams).parameters)
    assert names == [field.name for field in dataclasses.fields(SamplingParams)]


class Uncomparable:
    """What cannot be asked whether it is something else."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SamplingParams)])
def test_arrays_tensors_and_the_like_are_refused_or_taken_by_name(name: str) -> None:
    odd: list[Any] = [numpy.array([1, 2]), torch.tensor([1.0, 2.0]), torch.tensor(3)]
    odd += [numpy.array(3), Uncomparable(), [Uncomparable()], complex(1, 2), object(), {1: 2}]
    for wrong in odd:
        with pytest.raises(PromptError, match=f"{name}="):
            SamplingParams(**{name: wrong})


def test_minus_one_for_top_k_is_all_tokens_and_for_a_seed_is_none_as_in_vllm() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    assert SamplingParams(seed=-1) == SamplingParams(seed=None)


def test_none_is_no_stop_string_and_no_stop_token_as_in_vllm() -> None:
    nothing: dict[str, Any] = {"stop": None, "stop_token_ids": None}
    assert SamplingParams(**nothing) == SamplingParams()


def test_several_completions_need_chance_and_have_seeds_of_their_own() -> None:
    with pytest.raises(PromptError, match="n=2 needs a temperature above 0"):
        SamplingParams(n=2)
    params = SamplingParams(n=3, temperature=1.0, seed=2**64 - 2)
    seeds = [params.of_completion(index).seed for index in range(3)]
    assert seeds == [2**64 - 2, 2**64 - 1, 0]
    below = SamplingParams(n=3, temperature=1.0, seed=-2)
    assert [below.of_completion(index).seed for index in range(3)] == seeds
    assert params.of_completion(1).n == 1
    assert SamplingParams(n=2, temperature=1.0).of_completion(1).seed is None


def test_a_name_of_vllm_is_taken_while_it_asks_for_nothing() -> None:
    plain = SamplingParams(presence_penalty=0, min_p=0.0, repetition_penalty=1, bad_words=[])  # type: ignore[call-arg]
    assert plain == SamplingParams()
    with pytest.raises(PromptError) as caught:
        SamplingParams(presence_penalty=0.5, detokenize=False)  # type: ignore[call-arg]
    assert str(caught.value).splitlines() == [
        "SamplingParams: detokenize=False is not supported by this engine: leave it out, or at "
        "True.",
        "SamplingParams: presence_penalty=0.5 is not supported by this engine: leave it out, or at "
        "0.0.",
    ]
