"""NaN and infinity: the request that meets them ends with an error, and no other one notices."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from sample_engine import LLM
from sample_engine.batch.request import FinishReason
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import REJECTION_METHODS
from sample_engine.engine_core import EngineCore
from sample_engine.errors import NotFiniteError
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    VOCAB,
    add_head,
    make_core,
    model_folder,
    plain_tokens,
    run,
)

OTHERS = {name: PROMPTS[name] for name in ("alike-5", "own-8", "own-33")}
SPECULATION: dict[str, Any] = {
    "none": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 3},
    "eagle": {"method": "eagle", "num_speculative_tokens": 3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return add_head(model_folder(tmp_path_factory.mktemp("model")))


def unused(folder: str, speculative: Any) -> int:
    """A token that the other texts do not have, nor a draft of theirs.

    (Numbers that are none of a draft's spoil what is computed beside it: 0 times NaN is NaN.)
    """
    core = make_core(folder, speculative_config=speculative)
    seen = {token for prompt in OTHERS.values() for token in prompt}
    for name, prompt in OTHERS.items():
        core.add_request(name, prompt, GREEDY)
    while core.has_unfinished():
        for output in core.step():
            seen.update(output.new_token_ids)
        for request in core.scheduler.running:
            seen.update(request.draft_token_ids)
    core.shutdown()
    return next(token for token in range(VOCAB) if token not in seen)


def damage(core: EngineCore, token: int, number: float = float("nan")) -> None:
    """Let whatever has seen this token become something that is no number."""
    core.runner.model.embed_tokens.weight.data[token] = number


@pytest.mark.parametrize("speculation", SPECULATION)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_the_request_ends_and_names_the_step_and_others_go_on(
    folder: str, speculation: str, number: float
) -> None:
    core = make_core(folder, speculative_config=SPECULATION[speculation])
    token = unused(folder, SPECULATION[speculation])
    damage(core, token, number)
    for name, prompt in OTHERS.items():
        core.add_request(name, prompt, GREEDY)
    core.add_request("bad", [*PROMPTS["own-8"], token], GREEDY)
    core.add_request("bad and drawn", [token, 3, 4], SAMPLED)
    tokens, last = run(core)
    for name, prompt in OTHERS.items():
        assert tokens[name] == plain_tokens(folder, prompt, COUNT), name
    for name in ("bad", "bad and drawn"):
        assert tokens[name] == []
        assert last[name].finish_reason is FinishReason.ERROR
        words = rf"Request {name!r}: in step [12] of the engine the model gave NaN or infinity as"
        assert re.match(words, str(last[name].error)), last[name].error
        assert "for token 1 of the answer" in str(last[name].error)
    metrics = core.metrics()
    assert metrics["finished_requests"] == len(OTHERS) + 2
    assert metrics["first_tokens"] == len(OTHERS)
    assert metrics["free_blocks"] == core.runner.num_blocks - 1
    core.shutdown()


@pytest.mark.parametrize("speculation", SPECULATION)
def test_what_came_before_stays_and_is_not_shared(folder: str, speculation: str) -> None:
    prompt = PROMPTS["own-33"]
    right = plain_tokens(folder, prompt, COUNT)
    bad = next(token for token in right[2:] if token not in prompt)
    first = right.index(bad)
    core = make_core(folder, speculative_config=SPECULATION[speculation])
    damage(core, bad)
    params = SamplingParams(max_tokens=COUNT, logprobs=2)
    core.add_request("one", prompt, params)
    lines = []
    outputs: list[Any] = []
    while core.has_unfinished():
        outputs += core.step()
    tokens = [token for output in outputs for token in output.new_token_ids]
    lines = [line for output in outputs for line in output.logprobs]
    assert tokens == right[: first + 1]
    assert [line.token_ids[0] for line in lines] == tokens
    assert f"for token {first + 2} of the answer" in outputs[-1].error
    assert f"in step {core.metrics()['steps']} of" in outputs[-1].error
    assert core.metrics()["cached_blocks"] == 0
    damage(core, bad, 0.5)
    core.add_request("two", prompt, params)
    last = run(core)[1]["two"]
    assert (last.num_cached_tokens, last.error) == (0, None)
    core.shutdown()


def test_callers_are_told_as_of_other_errors(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"device": "cpu", "worker_method": "inproc", "num_blocks": 40}
    with LLM(folder, **settings) as llm:
        compute = llm._client._core.runner.model.compute_logits  # type: ignore[attr-defined]

        def second_row(hidden: torch.Tensor) -> torch.Tensor:
            logits = compute(hidden)
            logits[1:2, 5] = float("nan")
            return logits

        monkeypatch.setattr(llm._client._core.runner.model, "compute_logits", second_row)  # type: ignore[attr-defined]
        prompts = [{"prompt_token_ids": PROMPTS[name]} for name in ("own-4", "own-8")]
        good, bad = llm.generate(prompts, SamplingParams(max_tokens=2))
        assert list(good.outputs[0].token_ids) == plain_tokens(folder, PROMPTS["own-4"], 2)
        assert good.error is None
        assert (bad.finish_reason, bad.outputs[0].token_ids) == (FinishReason.ERROR, ())
        assert "NaN or infinity" in str(bad.error)
        assert (good.error_type, bad.error_type) == (None, "NotFiniteError")
        monkeypatch.setattr(
            llm._client._core.runner.model,  # type: ignore[attr-defined]
            "compute_logits",
            lambda hidden: compute(hidden) * float("inf"),
        )
        with pytest.raises(NotFiniteError, match="NaN or infinity as logits, for token 1"):
            llm.generate(prompts[0])


@pytest.mark.parametrize("method", REJECTION_METHODS)
def test_a_draft_head_that_computes_no_numbers_changes_no_text(folder: str, method: str) -> None:
    speculative = {**SPECULATION["eagle"], "rejection_sample_method": method}
    core = make_core(folder, speculative_config=speculative)
    assert core.runner.speculator is not None
    for module in core.runner.speculator.modules:
        for weight in module.parameters():
            weight.data.fill_(float("nan"))
    for name, prompt in OTHERS.items():
        core.add_request(name, prompt, GREEDY)
    for seed in range(4):
        hot = SamplingParams(temperature=2.0, seed=seed, max_tokens=COUNT)
        core.add_request(f"drawn {seed}", PROMPTS["own-8"], hot)
    tokens, last = run(core)
    for name, prompt in OTHERS.items():
        assert tokens[name] == plain_tokens(folder, prompt, COUNT)
    drawn = [token for seed in range(4) for token in tokens[f"drawn {seed}"]]
    assert len(set(drawn)) > len(drawn) / 2  # not one and the same
    assert not any(output.error for output in last.values())
    core.shutdown()
