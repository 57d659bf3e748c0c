"""The arguments of a call of ``LLM``: prompts in each of their forms, and parameters for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.errors import PromptError

__all__ = ["Batch", "Message", "Params", "Prompt", "PromptParts", "checked", "conversations"]

Params = SamplingParams | Sequence[SamplingParams] | None
Message = Mapping[str, Any]
Prompt = str | Mapping[str, Any]  # {"prompt": "..."} and {"prompt_token_ids": [...]} as in vLLM


class PromptParts(NamedTuple):
    """A prompt as text, as tokens, or as both. What is no token is refused later."""

    text: str | None
    token_ids: list[Any] | None


class Batch(NamedTuple):
    """The arguments of a call, checked. ``single``: one prompt was given by itself."""

    prompts: list[PromptParts]
    params: list[SamplingParams]
    single: bool


def checked(prompts: Prompt | Sequence[Prompt], sampling_params: Params) -> Batch:
    """Check the arguments before anything is computed."""
    single = isinstance(prompts, (str, Mapping))
    if single:
        given: list[Any] = [prompts]
    elif isinstance(prompts, Iterable) and not isinstance(prompts, (bytes, bytearray)):
        given = list(prompts)
    else:
        raise TypeError(
            f"prompts={prompts!r} is of the type {type(prompts).__name__}: give a str, or a list "
            "of str."
        )
    found = [_prompt(number, prompt) for number, prompt in enumerate(given)]
    return Batch(found, _each(sampling_params, len(found)), single)


def conversations(messages: object) -> tuple[list[Any], bool]:
    """The conversations of an argument that is one or several of them, and whether it is several.

    A conversation is a list of messages. What the messages are is looked at later.
    """
    if not isinstance(messages, Iterable) or isinstance(messages, (str, bytes, bytearray, Mapping)):
        raise TypeError(
            f"messages={messages!r} is of the type {type(messages).__name__}: give a list of "
            "messages, each {'role': 'user', 'content': '...'}, or a list of such lists."
        )
    given = list(messages)
    several = bool(given) and not isinstance(given[0], Mapping)
    return (given if several else [given]), several


def _prompt(number: int, given: object) -> PromptParts:
    """One prompt, of one of its forms."""
    if isinstance(given, str):
        return PromptParts(given, None)
    if not isinstance(given, Mapping):
        raise TypeError(
            f"Prompt {number} is {given!r}: prompts are str, or a list of str. One of tokens is "
            "{'prompt_token_ids': [...]}."
        )
    unknown = given.keys() - {"prompt", "prompt_token_ids"}
    if unknown:
        names = ", ".join(sorted(map(repr, unknown)))
        raise TypeError(
            f"Prompt {number} has {names}, which this engine does not know: a prompt that is a "
            "mapping has 'prompt' or 'prompt_token_ids'."
        )
    text, tokens = given.get("prompt"), given.get("prompt_token_ids")
    if tokens is not None:
        if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
            raise TypeError(f"Prompt {number}: prompt_token_ids={tokens!r} is no list of tokens.")
        if text is not None and not isinstance(text, str):
            raise TypeError(f"Prompt {number}: prompt={text!r} is no text.")
        return PromptParts(text, list(tokens))
    if not isinstance(text, str):
        raise TypeError(f"Prompt {number}: prompt={text!r} is no text.")
    return PromptParts(text, None)


def _each(sampling_params: object, count: int) -> list[SamplingParams]:
    """The parameters of each of so many prompts."""
    if sampling_params is None:
        sampling_params = SamplingParams()
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    wanted = "it is a SamplingParams, or a list with one for each prompt."
    if not isinstance(sampling_params, Iterable) or isinstance(
        sampling_params, (str, bytes, bytearray, Mapping)
    ):
        is_mapping = isinstance(sampling_params, Mapping)
        hint = " SamplingParams(**values) makes one of a mapping." if is_mapping else ""
        raise TypeError(
            f"sampling_params={sampling_params!r} is of the type {type(sampling_params).__name__}: "
            f"{wanted}{hint}"
        )
    each = list(sampling_params)
    for params in each:
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params holds {params!r}: {wanted}")
    if len(each) != count:
        raise PromptError(
            f"There are {count} prompts and {len(each)} sampling_params: give one for all, or "
            "one for each prompt."
        )
    return each
