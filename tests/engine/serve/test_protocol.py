"""What a request asks the engine for, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pydantic", reason="the server needs it, with FastAPI")

from pydantic import ValidationError

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.vllm_names import SAMPLING
from sample_engine.errors import PromptError
from sample_engine.serve.protocol import ChatRequest, CompletionRequest, UnsupportedFieldError

USER = {"role": "user", "content": "hi"}


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "tiny", "prompt": "a", **fields})


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "tiny", "messages": [USER], **fields})


def test_the_defaults_are_those_of_openai() -> None:
    assert completion().params() == SamplingParams(temperature=1.0, max_tokens=16)
    assert chat().params() == SamplingParams(temperature=1.0, max_tokens=None)


def test_all_that_the_engine_can_do_is_passed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "n": 2, "seed": 7, "ignore_eos": True}
    more = {"stop": ["x", "y"], "stop_token_ids": [3], "max_tokens": 9, "logprobs": 2}
    wanted: Any = {**fields, **more, "stop": ("x", "y"), "stop_token_ids": (3,)}
    assert completion(**fields, **more).params() == SamplingParams(**wanted)
    assert completion(stop="end").params().stop == ("end",)


def test_chat_has_names_of_its_own() -> None:
    assert chat(max_tokens=5).params().max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=3).params().max_tokens == 3
    assert chat(logprobs=True).params().logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).params().logprobs == 4
    with pytest.raises(UnsupportedFieldError, match="needs logprobs=true"):
        chat(top_logprobs=4).params()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [{"prompt_token_ids": [1, 2]}]),
        ([[1], [2, 3]], [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2, 3]}]),
    ],
)
def test_prompts_have_four_forms(prompt: Any, expected: list[Any]) -> None:
    assert completion(prompt=prompt).prompts() == expected


def test_messages_become_lines() -> None:
    parts = [{"type": "text", "text": "what "}, {"type": "text", "text": "now?"}]
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": parts}]
    assert chat(messages=messages).conversation() == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "what now?"},
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 3}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temprature": 0.5}, "temprature"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usages": None}}, "stream_options"),
    ],
)
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    for request in (completion(**fields), chat(**fields)):
        with pytest.raises(UnsupportedFieldError, match=param) as refused:
            request.params()
        assert refused.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1, "echo": False, "suffix": None, "presence_penalty": 0, "logit_bias": {}},
        {"stream_options": {"include_obfuscation": False, "continuous_usage_stats": None}},
        {"user": "me", "tools": [], "response_format": {"type": "text"}, "frequency_penalty": 0.0},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert completion(**fields).params() == completion().params()


@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_names_of_vllm_are_taken_as_sampling_params_take_them(name: str) -> None:
    for nothing in (None, *SAMPLING[name]):
        assert completion(**{name: nothing}).params() == completion().params()
    for something in (7, ["x"], {"x": 1}, "x"):
        for request in (completion(**{name: something}), chat(**{name: something})):
            with pytest.raises(UnsupportedFieldError, match=f"{name}=.* is not supp") as refused:
                request.params()
            assert refused.value.param == name


def test_a_message_that_says_more_than_its_text_is_refused() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for more in ({"tool_calls": [call]}, {"function_call": call}, {"tool_call_id": "a"}):
        (name,) = more
        request = chat(messages=[USER, {"role": "assistant", "content": None, **more}])
        with pytest.raises(UnsupportedFieldError, match=f"A message has '{name}'") as refused:
            request.conversation()
        assert refused.value.param == "messages"
    # As openai's client writes an answer that has none of them.
    nothing: dict[str, Any] = {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    assert chat(messages=[{**USER, **nothing}]).conversation() == [USER]


def test_empty_requests_are_refused() -> None:
    for request in (completion(prompt=[]), chat(messages=[])):
        with pytest.raises(UnsupportedFieldError, match="is empty"):
            request.prompts() if isinstance(request, CompletionRequest) else request.conversation()
    with pytest.raises(UnsupportedFieldError, match="'image_url'"):
        chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]).conversation()
    (empty,) = chat(messages=[{"role": "user", "content": None}]).conversation()
    assert empty == {"role": "user", "content": ""}


def test_values_out_of_range_and_of_another_type_are_refused() -> None:
    with pytest.raises(PromptError, match="temperature=-1"):
        completion(temperature=-1).params()
    with pytest.raises(PromptError, match="n=2 needs a temperature"):
        completion(temperature=0, n=2).params()
    for fields in ({"max_tokens": "5"}, {"n": 1.5}, {"prompt": [True]}, {"stream": "yes"}):
        with pytest.raises(ValidationError):
            completion(**fields)
    numbers = ("temperature", "top_p", "top_k", "n", "seed", "max_tokens")
    wrong: list[Any] = [True, "1", [1], {}]
    for name in numbers:
        assert completion(**{name: 1}).params()
        for value in wrong:
            with pytest.raises(ValidationError):
                completion(**{name: value})


@pytest.mark.parametrize("name", ["id", "refusal", "reasoning_content", "annotations", "contnet"])
def test_a_field_of_a_message_that_nobody_reads_is_refused(name: str) -> None:
    """Whatever it is called: it would be left out of what the model sees."""
    request = chat(messages=[{**USER, name: "x"}])
    with pytest.raises(UnsupportedFieldError, match=f"A message has '{name}'") as refused:
        request.conversation()
    assert refused.value.param == "messages"
    part = {"type": "text", "text": "hi", name: {"type": "ephemeral"}}
    with pytest.raises(UnsupportedFieldError, match=f"A part of a message has '{name}'"):
        chat(messages=[{"role": "user", "content": [part]}]).conversation()
    empty: list[Any] = [None, "", [], {}]
    for nothing in empty:
        several = [{**USER, name: nothing}, {**USER, "content": [{**part, name: nothing}]}]
        assert chat(messages=several).conversation() == [USER, USER]


def test_the_name_of_who_speaks_reaches_the_template() -> None:
    assert chat(messages=[{**USER, "name": "Ada"}]).conversation() == [{**USER, "name": "Ada"}]
    assert chat(messages=[{**USER, "name": None}]).conversation() == [USER]


WRONG: list[Any] = [True, None, 0.5, {}, [True], ["a"], [[1]]]


@pytest.mark.parametrize(
    ("make", "field", "wrong"),
    [
        *((completion, "prompt", each) for each in WRONG),
        (completion, "stop", 1),
        (completion, "stop_token_ids", "1"),
        (chat, "stop_token_ids", None),
        (chat, "messages", None),
        (chat, "messages", {"content": "a"}),
        (chat, "messages", {"role": 1, "content": "a"}),
    ],
)
def test_the_first_wrong_element_ends_the_reading(make: Any, field: str, wrong: Any) -> None:
    """Errors of all of them would take gigabytes, and the time of everybody else."""
    few, many = (count_errors(make, field, [wrong] * count) for count in (2, 1000))
    assert few == many


def test_the_first_wrong_part_of_a_message_ends_the_reading() -> None:
    few, many = (
        count_errors(chat, "messages", [{"role": "user", "content": [1] * count}])
        for count in (2, 1000)
    )
    assert few == many


def count_errors(make: Any, field: str, values: list[Any]) -> int:
    with pytest.raises(ValidationError) as refused:
        make(**{field: values})
    return refused.value.error_count()
