"""Programs that were written for vLLM run: its names, its forms of prompts, its outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sample_engine import (  # noqa: E402
    LLM,
    ConfigError,
    FinishReason,
    PromptError,
    SamplingParams,
)

PROMPT = "import os\nimport "
SPECULATION: dict[str, Any] = {
    "none": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 4},
    "eagle": {"method": "eagle", "num_speculative_tokens": 3},
}


@pytest.fixture(scope="module", params=SPECULATION)
def llm(request: pytest.FixtureRequest) -> Any:
    """The tiny model in this process, with and without drafts."""
    settings = {"speculative_config": SPECULATION[request.param]}
    with LLM(model="tiny", device="cpu", worker_method="inproc", **settings) as made:
        yield made


def test_a_script_written_for_vllm_runs_with_its_import_and_model_replaced() -> None:
    llm = LLM(
        model="tiny",
        trust_remote_code=False,
        enforce_eager=True,
        gpu_memory_utilization=0.5,
        device="cpu",
        worker_method="inproc",
    )
    params = SamplingParams(temperature=0.8, top_p=0.95, top_k=-1, max_tokens=10, seed=1)
    outputs = llm.generate(["def main(", "import "], params)
    for output in outputs:
        assert output.outputs[0].text == output.text
        assert len(output.outputs[0].token_ids) == 10
    llm.shutdown()


def test_logprobs_are_those_of_the_model(llm: LLM) -> None:
    greedy = SamplingParams(max_tokens=24, logprobs=3)
    (plain,) = llm.generate(PROMPT, SamplingParams(max_tokens=24))
    (output,) = llm.generate(PROMPT, greedy)
    (completion,) = output.outputs
    assert completion.token_ids == plain.token_ids, "asking changes nothing"
    assert completion.logprobs is not None
    text = list(output.prompt_token_ids)
    for token, line in zip(completion.token_ids, completion.logprobs, strict=True):
        text.append(token)
        assert len(line) == 3, "the greedy token is the most likely one"
        assert line[token].rank == 1
        assert [one.rank for one in line.values()] == [1, 2, 3]
        assert sum(math.exp(one.logprob) for one in line.values()) <= 1.0 + 1e-5
    cumulative = completion.cumulative_logprob
    assert cumulative == pytest.approx(_sum_of_logprobs(text, len(completion.token_ids)), abs=1e-2)


def _sum_of_logprobs(text: list[int], generated: int) -> float:
    """The logarithm of the probability of the end of a text, token by token, one at a time."""
    total = 0.0
    with LLM(model="tiny", device="cpu", worker_method="inproc") as fresh:
        prompts = [
            {"prompt_token_ids": text[:end]} for end in range(len(text) - generated, len(text))
        ]
        found = fresh.generate(prompts, SamplingParams(max_tokens=1, logprobs=20))
        for output, token in zip(found, text[-generated:], strict=True):
            assert output.outputs[0].logprobs is not None
            total += output.outputs[0].logprobs[0][token].logprob
    return total


def test_completions_of_one_prompt_are_those_of_their_seeds(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=16, logprobs=0)
    (output,) = llm.generate(PROMPT, params)
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert len({one.text for one in output.outputs}) == 3
    for one in output.outputs:
        assert one.logprobs is not None
        assert [list(line) for line in one.logprobs] == [[token] for token in one.token_ids]
    alone = SamplingParams(temperature=1.0, seed=6, max_tokens=16)
    if llm.info()["speculator"] is None:
        assert llm.generate(PROMPT, alone)[0].text == output.outputs[1].text


def test_a_stop_token_is_the_last_one(llm: LLM) -> None:
    newline = ord("\n")
    (output,) = llm.generate(PROMPT, SamplingParams(max_tokens=64, stop_token_ids=(newline,)))
    (completion,) = output.outputs
    assert completion.finish_reason is FinishReason.STOP
    assert completion.stop_reason == newline
    assert completion.token_ids.index(newline) == len(completion.token_ids) - 1
    (up_to_it,) = llm.generate(PROMPT, SamplingParams(max_tokens=64, stop=("\n",)))
    assert (up_to_it.text, up_to_it.token_ids) == (completion.text, completion.token_ids)
    with pytest.raises(PromptError, match="stop_token_ids has 257, but the vocabulary goes from"):
        llm.generate(PROMPT, SamplingParams(stop_token_ids=(257,)))


def test_without_a_limit_a_text_ends_where_the_model_has_no_room() -> None:
    with LLM(model="tiny", device="cpu", worker_method="inproc", max_model_len=40) as llm:
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        (output,) = llm.generate(PROMPT, params)
    assert output.finish_reason is FinishReason.LENGTH
    assert output.num_prompt_tokens + len(output.token_ids) == 40


def test_what_only_vllm_can_do_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(trust_remote_code=True, quantization="awq", enforce_eager=1)
    assert str(caught.value).splitlines() == [
        "quantization='awq' is not supported by this engine: leave it out, or at None.",
        "trust_remote_code=True is not supported by this engine: leave it out, or at False.",
        "enforce_eager=1 must be True or False.",
    ]
    with pytest.raises(ConfigError, match=r"enforce_eager=True and cudagraph_mode=.* contradict"):
        LLM(enforce_eager=True, cudagraph_mode="FULL")
