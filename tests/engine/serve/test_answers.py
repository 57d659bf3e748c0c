"""What the engine brings, in the words of OpenAI's interface."""

from __future__ import annotations

from typing import Any

from sample_engine.batch.outputs import CompletionOutput, Logprob, RequestOutput
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.serve.answers import Answer, error_body, models_body


def new(
    text: str,
    index: int = 0,
    reason: FinishReason | None = None,
    logprobs: tuple[dict[int, Logprob], ...] | None = None,
) -> RequestOutput:
    tokens = tuple(text.encode())
    completion = CompletionOutput(index, text, tokens, reason, logprobs=logprobs)
    return RequestOutput("9", "abc", (97, 98, 99), (completion,), num_cached_tokens=2)


def answer(*, n: int = 1, chat: bool = False, logprobs: int | None = None) -> Answer:
    params = SamplingParams(n=n, temperature=1.0, logprobs=logprobs)
    return Answer("tiny", params, chat=chat)


def test_parts_are_joined_in_the_order_of_prompts_and_completions() -> None:
    made = answer(n=2)
    made.add(1, new("d", 1, FinishReason.LENGTH))
    made.add(0, new("a"))
    made.add(0, new("b", 1, FinishReason.STOP))
    made.add(1, new("c", 0, FinishReason.ABORT))
    made.add(0, new("e", 0, FinishReason.STOP))
    whole = made.whole()
    assert [(each["index"], each["text"], each["finish_reason"]) for each in whole["choices"]] == [
        (0, "ae", "stop"),
        (1, "b", "stop"),
        (2, "c", "abort"),
        (3, "d", "length"),
    ]
    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert whole["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 5,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_a_stream_of_a_conversation_says_the_role_once() -> None:
    made = answer(chat=True)
    first = made.part(0, new("a"))
    second = made.part(0, new("b", reason=FinishReason.STOP))
    assert first["choices"][0]["delta"] == {"content": "a", "role": "assistant"}
    assert second["choices"][0]["delta"] == {"content": "b"}
    assert (first["choices"][0]["finish_reason"], second["choices"][0]["finish_reason"]) == (
        None,
        "stop",
    )
    assert first["object"] == "chat.completion.chunk"
    assert first["id"] == second["id"]
    last = made.last_part()
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)


def test_a_conversation_has_a_message() -> None:
    made = answer(chat=True)
    made.add(0, new("ab", reason=FinishReason.STOP))
    (choice,) = made.whole()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "ab"}
    assert "text" not in choice


def likely(token: int, other: int) -> dict[int, Logprob]:
    """How likely two bytes were; one that is no text by itself is shown as U+FFFD."""

    def line(byte: int, logprob: float, rank: int) -> Logprob:
        data = bytes((byte,))
        return Logprob(logprob, rank, data.decode("utf-8", "replace"), data)

    return {token: line(token, -2.0, 2), other: line(other, -0.5, 1)}


def test_log_probabilities_of_a_completion_go_on_from_part_to_part() -> None:
    made = answer(logprobs=1)
    made.add(0, new("a", logprobs=(likely(97, 120),)))
    made.add(0, new("b", reason=FinishReason.STOP, logprobs=(likely(98, 121),)))
    assert made.whole()["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-2.0, -2.0],
        "top_logprobs": [{"a": -2.0, "x": -0.5}, {"b": -2.0, "y": -0.5}],
        "text_offset": [0, 1],
    }


def test_parts_of_a_character_have_their_bytes_and_begin_where_it_begins() -> None:
    whole = tuple(likely(byte, byte ^ 1) for byte in "a\u00e9b".encode())
    made, lines = answer(logprobs=1), whole
    for part in ("a", "\u00e9b"):
        made.add(0, new(part, logprobs=lines[: len(part.encode())]))
        lines = lines[len(part.encode()) :]
    found = made.whole()["choices"][0]["logprobs"]
    assert found["text_offset"] == [0, 1, 1, 2]
    assert found["top_logprobs"][1] == {"\ufffd": -2.0}  # the generated one, not the likelier one
    made = answer(chat=True, logprobs=1)
    made.add(0, new("a\u00e9b", logprobs=whole))
    content = made.whole()["choices"][0]["logprobs"]["content"]
    assert [each["bytes"] for each in content] == [[97], [0xC3], [0xA9], [98]]


def test_log_probabilities_of_a_conversation_name_as_many_as_were_asked_for() -> None:
    found: list[Any] = []
    for most in (0, 1):
        made = answer(chat=True, logprobs=most)
        part = made.part(0, new("a", logprobs=(likely(97, 120),)))
        found.append(part["choices"][0]["logprobs"]["content"][0])
    named = {"token": "x", "logprob": -0.5, "bytes": [120]}
    assert [each["top_logprobs"] for each in found] == [[], [named]]
    assert found[0]["token"] == "a"


def test_errors_and_models_have_the_form_that_clients_read() -> None:
    assert error_body("no", "server_error", "c", "p") == {
        "error": {"message": "no", "type": "server_error", "param": "p", "code": "c"}
    }
    (model,) = models_body(["tiny"], 5, 2048)["data"]
    assert (model["id"], model["created"], model["max_model_len"]) == ("tiny", 5, 2048)
