"""What the engine brings, in the words of OpenAI's interface: whole answers, parts of streams."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sample_engine.batch.outputs import CompletionOutput, Logprob, RequestOutput
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams

_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Answer:
    """One answer to one HTTP request, of one or several prompts; it may be sent in parts.

    Choices are numbered over all prompts: ``n`` for each, in the order of the prompts.
    """

    def __init__(self, model: str, params: SamplingParams, *, chat: bool) -> None:
        """Begin an answer of a model, with ``params.n`` completions for each prompt."""
        self._chat = chat
        self._most_likely = params.logprobs or 0
        self._n = params.n
        self._model = model
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._prompt_tokens: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._completion_tokens = 0
        self._offsets: dict[int, _Offsets] = {}
        self._whole: dict[int, dict[str, Any]] = {}
        self._begun: set[int] = set()

    def part(self, place: int, output: RequestOutput) -> dict[str, Any]:
        """Return what is new of one completion, as a part of a stream."""
        number, completion = self._take(place, output)
        choice: dict[str, Any] = {
            "index": number,
            "logprobs": self._logprobs(number, completion),
            "finish_reason": _reason(completion),
        }
        if self._chat:
            choice["delta"] = {"content": completion.text}
            if number not in self._begun:
                choice["delta"]["role"] = "assistant"
        else:
            choice["text"] = completion.text
        self._begun.add(number)
        return self._around([choice], "chunk")

    def add(self, place: int, output: RequestOutput) -> None:
        """Keep what is new of one completion for the whole answer."""
        number, completion = self._take(place, output)
        new = self._logprobs(number, completion)
        choice = self._whole.setdefault(number, {"text": "", "logprobs": None})
        choice["text"] += completion.text
        choice["finish_reason"] = _reason(completion)
        if new is not None and choice["logprobs"] is not None:
            for name, more in new.items():
                choice["logprobs"][name] += more
        else:
            choice["logprobs"] = new or choice["logprobs"]

    def whole(self) -> dict[str, Any]:
        """Return all that was added."""
        choices = []
        for number in sorted(self._whole):
            choice = {"index": number, **self._whole[number]}
            if self._chat:
                choice["message"] = {"role": "assistant", "content": choice.pop("text")}
            choices.append(choice)
        return {**self._around(choices, ""), "usage": self.usage()}

    def last_part(self) -> dict[str, Any]:
        """Return the part of a stream that says what it has cost."""
        return {**self._around([], "chunk"), "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Return how many tokens went in and came out."""
        prompt = sum(self._prompt_tokens.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }

    def _take(self, place: int, output: RequestOutput) -> tuple[int, CompletionOutput]:
        """Count an output of the prompt at a place; return its choice's number and what is new."""
        (completion,) = output.outputs
        self._prompt_tokens[place] = output.num_prompt_tokens
        self._cached[place] = max(self._cached.get(place, 0), output.num_cached_tokens)
        self._completion_tokens += len(completion.token_ids)
        return place * self._n + completion.index, completion

    def _around(self, choices: list[dict[str, Any]], part: str) -> dict[str, Any]:
        kind = "text_completion"
        if self._chat:
            kind = "chat.completion.chunk" if part else "chat.completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _logprobs(self, number: int, completion: CompletionOutput) -> dict[str, Any] | None:
        if completion.logprobs is None:
            return None
        tokens = list(zip(completion.token_ids, completion.logprobs, strict=True))
        if self._chat:
            most = self._most_likely
            return {"content": [_chat_token(token, among, most) for token, among in tokens]}
        found: dict[str, Any] = {
            "tokens": [among[token].decoded_token for token, among in tokens],
            "token_logprobs": [among[token].logprob for token, among in tokens],
            "top_logprobs": [_by_text(among) for _, among in tokens],
        }
        offsets = self._offsets.setdefault(number, _Offsets())
        found["text_offset"] = [offsets.next(among[token].token_bytes) for token, among in tokens]
        return found


class _Offsets:
    """Where in a text its tokens begin, one after the other; in a character: where that begins."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def next(self, token: bytes) -> int:
        """Return where a token begins."""
        offset = self._offset
        self._offset += len(self._decoder.decode(token))
        return offset


def _by_text(among: Mapping[int, Logprob]) -> dict[str, float]:
    """How likely texts were: the generated token first, and of equal texts the likeliest."""
    found: dict[str, float] = {}
    for each in among.values():
        found.setdefault(each.decoded_token, each.logprob)
    return found


def _chat_token(token: int, among: dict[int, Logprob], most: int) -> dict[str, Any]:
    """One token with those that were most likely in its place, in descending order."""
    ranked = sorted(among.values(), key=lambda each: each.rank)[:most]
    return {**_named(among[token]), "top_logprobs": [_named(each) for each in ranked]}


def _named(one: Logprob) -> dict[str, Any]:
    return {
        "token": one.decoded_token,
        "logprob": one.logprob,
        "bytes": list(one.token_bytes),
    }


def _reason(completion: CompletionOutput) -> str | None:
    reason = completion.finish_reason
    return None if reason is None else _REASONS.get(reason, reason.name.lower())


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> Any:
    """Return an error as OpenAI's clients read it.

    A template may say what a client has given it; what of that has no UTF-8 becomes an escape.
    """
    text = message.encode("utf-8", "backslashreplace").decode()
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def models_body(names: Sequence[str], created: int, max_model_len: int | None) -> Any:
    """Return the list of models."""
    data = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "sample_engine",
            "max_model_len": max_model_len,
        }
        for name in names
    ]
    return {"object": "list", "data": data}
