"""Speculation as a user has it: settings to ``LLM``, in every kind of process, and its numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import sample_engine.llm
from sample_engine import LLM, SamplingParams
from sample_engine.__main__ import main
from sample_engine.batch.outputs import RequestOutput

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    "eagle": {"method": "eagle", "num_speculative_tokens": 3},
}
PROMPTS = ["def quick_sort(", "import os\nimport sys\nimport "]
PARAMS = [
    SamplingParams(max_tokens=40, stop=("\n\n\n",)),
    SamplingParams(max_tokens=30, temperature=0.7, top_k=20, top_p=0.95, seed=9),
]


def outputs(speculative: dict[str, Any] | None, method: str, **settings: Any) -> list[Any]:
    with LLM(worker_method=method, device="cpu", speculative_config=speculative, **settings) as llm:
        found = [_plain(output) for output in llm.generate(PROMPTS, PARAMS)]
        metrics, info = llm.metrics(), llm.info()
    if speculative is not None:
        assert info["speculator"] == speculative["method"]
        assert info["num_speculative_tokens"] == speculative["num_speculative_tokens"]
        assert metrics["tokens_per_step"] > 1.1
        assert len(metrics["acceptance_per_position"]) == info["num_speculative_tokens"]
    return found


def _plain(output: RequestOutput) -> tuple[str, tuple[int, ...], Any]:
    return output.text, output.token_ids, output.finish_reason


@cache
def without() -> list[Any]:
    return outputs(None, "inproc")


# Both in a forked core; what the other methods pass to a core is the same for all speculators.
@pytest.mark.parametrize(
    ("name", "start"),
    [*((name, "fork") for name in METHODS), ("ngram", "spawn"), ("eagle", "forkserver")],
)
def test_a_core_that_speculates_gives_the_same_texts_however_it_is_started(
    name: str, start: str
) -> None:
    strict = {**METHODS[name], "rejection_sample_method": "strict"}
    assert outputs(strict, start) == without()


@pytest.mark.parametrize("name", METHODS)
def test_the_default_method_gives_the_same_greedy_texts(name: str) -> None:
    assert outputs(METHODS[name], "inproc")[0] == without()[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_stream_brings_the_tokens_of_a_step_at_once_and_the_same_text(name: str) -> None:
    with LLM(worker_method="inproc", device="cpu", speculative_config=METHODS[name]) as llm:
        chunks = list(llm.generate_stream(PROMPTS[0], PARAMS[0]))
    text, token_ids, reason = without()[0]
    assert "".join(chunk.text for chunk in chunks) == text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == token_ids
    assert chunks[-1].finish_reason == reason
    assert len(chunks) < len(token_ids)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", METHODS)
def test_our_kernels_verify_drafts_too(name: str) -> None:
    """Few tokens: the interpreter is slow."""
    params = SamplingParams(max_tokens=6)

    def text(backend: str, speculative: dict[str, Any] | None) -> str:
        with LLM(
            worker_method="inproc",
            device="cpu",
            attention_backend=backend,
            max_num_seqs=1,
            speculative_config=speculative,
        ) as llm:
            return llm.generate("x = [1, 1, 1, 1, ", params)[0].text

    assert text("triton", METHODS[name]) == text("reference", None)


def test_the_command_line_says_what_speculation_came_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMPLE_ENGINE_WORKER_METHOD", "inproc")
    config = '{"method": "eagle", "num_speculative_tokens": 2}'
    arguments = ["def quick_sort(", "--max-tokens=24", "--device=cpu"]
    assert main([*arguments, "--speculative-config", config]) == 0
    out, err = capsys.readouterr()
    assert out == PROMPTS[0] + _text_of(24) + "\n"
    numbers = err.removesuffix("\n").split(" tokens per step; drafts accepted, by position: ")
    assert 1.5 < float(numbers[0]) <= 3
    counts = [[int(count) for count in each.split(" of ")] for each in numbers[1].split(", ")]
    assert [0 < accepted <= drafted for accepted, drafted in counts] == [True, True]
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""


def _text_of(count: int) -> str:
    with sample_engine.llm.LLM(worker_method="inproc", device="cpu") as llm:
        return llm.generate(PROMPTS[0], SamplingParams(max_tokens=count))[0].text
