"""Speculation changes no token: each method, however the work is cut, shared or repeated."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    generate,
    make_core,
    model_folder,
    plain_tokens,
    run,
)
from tests.engine.support.speculation import EAGLE, NGRAM, Oracle, oracle_core

BACKENDS = ("reference", "sdpa", "lazy_plan")
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
METHODS = pytest.mark.parametrize("speculative", [NGRAM, EAGLE], ids=["ngram", "eagle"])

Expected = dict[SamplingParams, dict[str, list[int]]]


@pytest.fixture(scope="module")
def expected(folder: str) -> Expected:
    """What each prompt is continued with, by a plain loop."""
    return {
        params: {
            name: plain_tokens(folder, prompt, COUNT, params) for name, prompt in PROMPTS.items()
        }
        for params in (GREEDY, SAMPLED)
    }


def drafted(core: EngineCore) -> int:
    return sum(core.metrics()["drafted_per_position"])


@METHODS
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 500, "max_num_seqs": 10},
        {"enable_chunked_prefill": False},
        {"enable_prefix_caching": False},
        {"block_size": 1, "num_blocks": 500},
        {"block_size": 32},
    ],
    ids=str,
)
def test_greedy_tokens_are_those_without_speculation(
    folder: str,
    expected: Expected,
    backend: str,
    speculative: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    core = make_core(folder, attention_backend=backend, speculative_config=speculative, **settings)

    def as_expected(few: int) -> bool:
        made = generate(core, PROMPTS, SamplingParams(max_tokens=few))
        return made == {name: tokens[:few] for name, tokens in expected[GREEDY].items()}

    assert as_expected(8)
    assert as_expected(3), "with the prefixes cached"
    assert drafted(core) > 40


@METHODS
@pytest.mark.parametrize("drafts", [1, 2, 7])
def test_greedy_tokens_do_not_depend_on_the_number_of_drafts(
    folder: str, expected: Expected, speculative: dict[str, Any], drafts: int
) -> None:
    changed = {**speculative, "num_speculative_tokens": drafts}
    core = make_core(folder, speculative_config=changed)
    assert generate(core, PROMPTS, GREEDY) == expected[GREEDY]
    assert len(core.metrics()["drafted_per_position"]) == drafts


@BOTH
@METHODS
@pytest.mark.parametrize("num_blocks", [200, 15], ids=["roomy", "preempting"])
def test_the_strict_method_changes_no_token_of_sampled_requests_either(
    folder: str,
    expected: Expected,
    speculative: dict[str, Any],
    params: SamplingParams,
    num_blocks: int,
) -> None:
    strict = {**speculative, "rejection_sample_method": "strict"}
    core = make_core(folder, speculative_config=strict, num_blocks=num_blocks)
    assert generate(core, PROMPTS, params) == expected[params]
    assert (core.metrics()["preemptions"] > 0) == (num_blocks == 15)


@BOTH
@pytest.mark.parametrize("share_right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("num_blocks", [200, 15], ids=["roomy", "preempting"])
def test_drafts_that_are_often_right_change_no_token(
    folder: str, expected: Expected, params: SamplingParams, share_right: float, num_blocks: int
) -> None:
    core = oracle_core(
        folder,
        PROMPTS,
        expected[params],
        share_right=share_right,
        num_blocks=num_blocks,
        rejection_sample_method="strict",
    )
    assert generate(core, PROMPTS, params) == expected[params]
    metrics = core.metrics()
    right, all_drafts = metrics["accepted_per_position"], metrics["drafted_per_position"]
    assert sum(all_drafts) > 50
    assert (metrics["preemptions"] > 0) == (num_blocks == 15)
    assert (sum(right) == sum(all_drafts)) == (share_right == 1.0)
    assert (metrics["tokens_per_step"] > 1.9) == (share_right > 0)


@pytest.mark.parametrize("method", ["strict", "probabilistic"])
def test_greedy_and_sampled_requests_share_a_batch(
    folder: str, expected: Expected, method: str
) -> None:
    speculative = {**EAGLE, "rejection_sample_method": method}
    core = make_core(folder, max_num_seqs=10, speculative_config=speculative)
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        core.add_request(name, prompt, SAMPLED if number % 2 else GREEDY)
    tokens, _ = run(core)
    for number, name in enumerate(PROMPTS):
        if number % 2 == 0:
            assert tokens[name] == expected[GREEDY][name]
        elif method == "strict":
            assert tokens[name] == expected[SAMPLED][name]


@METHODS
def test_greedy_tokens_do_not_depend_on_when_a_request_arrives(
    folder: str, expected: Expected, speculative: dict[str, Any]
) -> None:
    chance = random.Random(3)
    core = make_core(
        folder, num_blocks=18, max_num_batched_tokens=20, speculative_config=speculative
    )
    tokens: dict[str, list[int]] = {}
    for name, prompt in chance.sample(sorted(PROMPTS.items()), len(PROMPTS)):
        core.add_request(name, prompt, GREEDY)
        for _ in range(chance.randint(0, 6)):
            for output in core.step():
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    for name, rest in run(core)[0].items():
        tokens.setdefault(name, []).extend(rest)
    assert tokens == expected[GREEDY]


def test_texts_end_at_max_tokens_and_at_the_longest_text_whatever_is_accepted(
    folder: str, expected: Expected
) -> None:
    prompts = {name: PROMPTS[name] for name in ("own-2", "own-33")}
    for most in range(1, 8):
        core = oracle_core(folder, prompts, expected[GREEDY], share_right=1.0, max_model_len=40)
        tokens = generate(core, prompts, SamplingParams(max_tokens=most))
        assert tokens["own-2"] == expected[GREEDY]["own-2"][:most]
        assert tokens["own-33"] == expected[GREEDY]["own-33"][: min(most, 7)]


def test_a_text_ends_at_an_end_of_text_among_the_accepted_drafts(
    tmp_path_factory: pytest.TempPathFactory, expected: Expected
) -> None:
    text = expected[GREEDY]["own-8"]
    end = next(index for index in range(2, COUNT) if text[index] not in text[:index])
    folder = model_folder(tmp_path_factory.mktemp("ends"), eos_token_id=text[end])
    core = oracle_core(folder, PROMPTS, expected[GREEDY], share_right=1.0)
    tokens = generate(core, {"own-8": PROMPTS["own-8"]}, GREEDY)
    assert tokens["own-8"] == text[: end + 1]


def test_a_head_without_weights_in_a_folder_is_said_by_name(tmp_path: Any) -> None:
    from sample_engine.errors import WeightsError

    with pytest.raises(WeightsError, match=r"eagle\.safetensors"):
        make_core(model_folder(tmp_path / "model"), speculative_config=EAGLE)


def test_the_largest_step_holds_drafts_and_leaves_nothing_behind(
    folder: str, expected: Expected
) -> None:
    core = make_core(folder, speculative_config=EAGLE, max_num_seqs=5, max_num_batched_tokens=48)
    runner = core.runner
    caches, speculator = runner.caches, runner.speculator
    assert speculator is not None
    runner.run_largest_step()
    runner.caches = caches
    speculator.allocate_cache(runner.num_blocks)
    prompts = {name: PROMPTS[name] for name in ("own-2", "own-33")}
    tokens = generate(core, prompts, GREEDY)
    assert tokens == {name: expected[GREEDY][name] for name in prompts}


def test_the_heads_cache_is_counted_with_the_models(folder: str) -> None:
    plain = make_core(folder, num_blocks=None, max_model_len=64)
    with_head = make_core(folder, num_blocks=None, max_model_len=64, speculative_config=EAGLE)
    assert plain.runner.num_blocks == with_head.runner.num_blocks, "there is room for both"
    speculator = with_head.runner.speculator
    assert speculator is not None
    assert speculator.bytes_per_block * 2 == 4 * 2 * 2 * 4 * 2 * 8


def test_an_oracle_that_is_half_right_says_the_same_of_the_same_text() -> None:
    texts = [[1, 2, 3, 4, 5, 6, 7]]
    first, second = (Oracle(texts, 4, 0.5)._drafts([1, 2, 3]) for _ in range(2))
    assert first == second
