"""Prompts in each of their forms, and parameters for each of them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import PromptError
from sample_engine.frontend.prompts import PromptParts, checked, conversations


def test_each_form_of_a_prompt_is_taken() -> None:
    one = checked("hi", None)
    assert (one.prompts, one.single) == ([PromptParts("hi", None)], True)
    assert one.params == [SamplingParams()]
    assert checked({"prompt": "hi"}, None).single
    both = {"prompt": "hi", "prompt_token_ids": (1, 2)}
    several = checked(["a", {"prompt_token_ids": [3]}, both], None)
    assert several.prompts == [
        PromptParts("a", None),
        PromptParts(None, [3]),
        PromptParts("hi", [1, 2]),
    ]
    assert not several.single


HI = {"role": "user", "content": "hi"}


def test_one_conversation_and_several_are_told_apart() -> None:
    assert conversations([HI]) == ([[HI]], False)
    assert conversations((HI, HI)) == ([[HI, HI]], False)
    assert conversations([[HI], [HI, HI]]) == ([[HI], [HI, HI]], True)
    assert conversations(iter([HI])) == ([[HI]], False)
    assert conversations([]) == ([[]], False)


@pytest.mark.parametrize("wrong", [HI, {}, "hi", b"hi", 5, None, object()])
def test_what_is_no_conversation_is_refused_with_its_type(wrong: object) -> None:
    """A message by itself above all, which is a mapping and has no first element."""
    with pytest.raises(TypeError, match=rf"is of the type {type(wrong).__name__}: give a list of"):
        conversations(wrong)


def test_tokens_are_taken_as_they_are() -> None:
    odd = [True, 1.5, "a", None, numpy.float32(1), numpy.int32(3)]
    ((_, found),) = checked({"prompt_token_ids": odd}, None).prompts
    assert found is not None
    assert all(one is other for one, other in zip(found, odd, strict=True))  # refused later


def test_parameters_are_for_all_or_for_each() -> None:
    one, two = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    assert checked(["a", "b"], one).params == [one, one]
    assert checked(["a", "b"], [one, two]).params == [one, two]
    with pytest.raises(PromptError, match="2 prompts and 1 sampling_params"):
        checked(["a", "b"], [one])


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        (7, None, "prompts=7 is of the type int"),
        (b"hi", None, "is of the type bytes"),
        ([7], None, "Prompt 0 is 7: prompts are str"),
        ({"prompt": 7}, None, "prompt=7 is no text"),
        ({"prompt": 7, "prompt_token_ids": [1]}, None, "prompt=7 is no text"),
        ({"prompt_token_ids": "abc"}, None, "is no list of tokens"),
        ({"prompt": "a", "images": []}, None, "has 'images', which this engine does not know"),
        ("a", {"max_tokens": 1}, r"SamplingParams\(\*\*values\) makes one of a mapping"),
        ("a", [1], "sampling_params holds 1"),
    ],
)
def test_anything_else_is_refused(prompts: Any, params: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        checked(prompts, params)
