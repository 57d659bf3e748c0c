"""A core makes the tokens that a plain loop makes, however the work is cut, shared or repeated."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    generate,
    make_core,
    plain_tokens,
    run,
)


@pytest.fixture(scope="module")
def expected(folder: str) -> dict[SamplingParams, dict[str, list[int]]]:
    """What each prompt is continued with, by a plain loop."""
    return {
        params: {
            name: plain_tokens(folder, prompt, COUNT, params) for name, prompt in PROMPTS.items()
        }
        for params in (GREEDY, SAMPLED)
    }


NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "rejection_sample_method": "strict",
}
EAGLE = {"method": "eagle", "num_speculative_tokens": 3}
Expected = dict[SamplingParams, dict[str, list[int]]]
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@BOTH
@pytest.mark.parametrize("more", [{}, {"async_scheduling": True}, {"speculative_config": NGRAM}])
def test_a_default_device_of_the_program_makes_no_difference(
    params: SamplingParams, more: dict[str, Any], folder: str, expected: Expected
) -> None:
    device = torch.get_default_device()
    torch.set_default_device("meta")  # as "cuda" would be: what lies there, no CPU reads
    try:
        made = generate(make_core(folder, **more), PROMPTS, params)
    finally:
        torch.set_default_device(None)
    assert torch.get_default_device() == device
    assert made == expected[params]


def ambient(name: str) -> contextlib.AbstractContextManager[object]:
    """A state of torch that a program may be in when it makes or runs an engine."""
    if name == "autocast":
        autocast: contextlib.AbstractContextManager[object]
        autocast = torch.autocast("cpu", dtype=torch.bfloat16)
        return autocast
    return default_dtype(getattr(torch, name))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make numbers whose type is not said of this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("state", ["autocast", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("more", [{}, {"speculative_config": NGRAM}, {"speculative_config": EAGLE}])
def test_types_that_the_program_has_set_make_no_difference(
    state: str, backend: str, more: dict[str, Any], folder: str
) -> None:
    settings = {"attention_backend": backend, **more}
    expected = outputs_as_usual(folder, json.dumps(settings))
    with ambient(state):
        assert outputs(folder, settings) == expected


@functools.cache
def outputs_as_usual(folder: str, settings: str) -> list[list[CoreOutput]]:
    """What comes where the program has set nothing."""
    return outputs(folder, json.loads(settings))


def outputs(folder: str, settings: dict[str, Any]) -> list[list[CoreOutput]]:
    """All that a core says of a prompt, greedy and sampled."""
    probable = dataclasses.replace(SAMPLED, logprobs=2)
    with make(folder, settings) as core:
        texts = {"own": PROMPTS["own-15"]}
        return [generate_all(core, texts, params) for params in (GREEDY, probable)]


@contextlib.contextmanager
def make(folder: str, settings: dict[str, Any]) -> Iterator[EngineCore]:
    """A core that ends with the block."""
    core = make_core(folder, **settings)
    yield core
    core.shutdown()


def generate_all(
    core: EngineCore, prompts: dict[str, list[int]], params: SamplingParams
) -> list[CoreOutput]:
    """All that a core says of prompts: tokens and their probabilities."""
    found = []
    for name, prompt in prompts.items():
        core.add_request(name, prompt, params)
    while core.has_unfinished():
        found += core.step()
    return found


def test_the_model_of_these_tests_says_many_different_things(expected: Expected) -> None:
    continuations = expected[GREEDY].values()
    assert len({tuple(tokens) for tokens in continuations}) == len(PROMPTS)
    assert len({token for tokens in continuations for token in tokens}) > 25


@BOTH
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 1, "max_num_seqs": 2},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 500, "max_num_seqs": 10},
        {"enable_chunked_prefill": False},
        {"enable_prefix_caching": False},
        {"block_size": 1, "num_blocks": 500},
        {"block_size": 32},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_how_the_work_is_cut(
    folder: str, expected: Expected, params: SamplingParams, settings: dict[str, Any]
) -> None:
    core = make_core(folder, **settings)
    assert generate(core, PROMPTS, params) == expected[params]
    assert core.metrics()["preemptions"] == 0


@BOTH
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_tokens_do_not_depend_on_preemptions(
    folder: str, expected: Expected, params: SamplingParams, caching: bool
) -> None:
    core = make_core(
        folder, num_blocks=13, enable_prefix_caching=caching, max_num_batched_tokens=30
    )
    assert generate(core, PROMPTS, params) == expected[params]
    assert core.metrics()["preemptions"] > 2


@BOTH
def test_tokens_do_not_depend_on_prefix_hits(
    folder: str, expected: Expected, params: SamplingParams
) -> None:
    core = make_core(folder)
    assert generate(core, PROMPTS, params) == expected[params]
    before = core.metrics()["prefix_cached_tokens"]
    assert generate(core, PROMPTS, params) == expected[params]
    assert core.metrics()["prefix_cached_tokens"] - before > 60


@BOTH
def test_tokens_do_not_depend_on_when_a_request_arrives(
    folder: str, expected: Expected, params: SamplingParams
) -> None:
    chance = random.Random(3)
    core = make_core(folder, num_blocks=18, max_num_batched_tokens=20)
    tokens: dict[str, list[int]] = {}
    for name, prompt in chance.sample(sorted(PROMPTS.items()), len(PROMPTS)):
        core.add_request(name, prompt, params)
        for _ in range(chance.randint(0, 6)):
            for output in core.step():
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    for name, rest in run(core)[0].items():
        tokens.setdefault(name, []).extend(rest)
    assert tokens == expected[params]


def test_greedy_and_sampled_requests_share_a_batch(folder: str, expected: Expected) -> None:
    core = make_core(folder, max_num_seqs=10)
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        core.add_request(name, prompt, SAMPLED if number % 2 else GREEDY)
    tokens, _ = run(core)
    for number, name in enumerate(PROMPTS):
        assert tokens[name] == expected[SAMPLED if number % 2 else GREEDY][name]


# On a GPU


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("backend", ["reference", "triton", "lazy_plan"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_blocks": 8},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 1},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_a_gpu_makes_the_same_tokens(
    folder: str,
    expected: Expected,
    params: SamplingParams,
    backend: str,
    settings: dict[str, Any],
) -> None:
    settings = {"block_size": 16, **settings}
    core = make_core(folder, device="cuda", dtype="float32", attention_backend=backend, **settings)
    assert generate(core, PROMPTS, params) == expected[params]
    core.shutdown()


def test_what_a_step_came_to_is_the_same_number_in_cores_that_do_the_same(folder: str) -> None:
    first, second, other = (make_core(folder) for _ in range(3))
    assert first.step_digest() == 0
    for core, seed in ((first, 1), (second, 1), (other, 2)):
        core.add_request("a", PROMPTS["own-8"], SamplingParams(temperature=5.0, seed=seed))
    seen = []
    for _ in range(8):
        for core in (first, second, other):
            core.step()
        assert first.step_digest() == second.step_digest()
        seen.append((first.step_digest(), other.step_digest()))
    assert any(one != two for one, two in seen)  # another seed, other tokens
    assert len({one for one, _ in seen}) == len(seen)
