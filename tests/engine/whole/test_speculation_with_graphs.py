"""Speculation with graphs makes the tokens that it makes without: drafts, verification, head."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from sample_engine.speculate import step
from sample_engine.speculate.eagle.cudagraph import DraftHeadGraphs
from sample_engine.speculate.eagle.speculator import EagleSpeculator
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    config_of,
    generate,
    plain_tokens,
    run,
)
from tests.engine.support.graphs import SoftwareExecution, captured_state
from tests.engine.support.speculation import EAGLE, NGRAM, Oracle

SIZES = (1, 3, 8, 64)  # every batch of these tests fits one of them
BACKENDS = ("reference", "lazy_plan")
FEW = [dataclasses.replace(params, max_tokens=6) for params in (GREEDY, SAMPLED)]
METHODS = pytest.mark.parametrize("speculative", [NGRAM, EAGLE], ids=["ngram", "eagle"])
EACH_BACKEND = pytest.mark.parametrize("backend", BACKENDS)


def core_of(
    folder: str,
    mode: str,
    speculative: dict[str, Any],
    *,
    step_graphs: bool = True,
    **settings: Any,
) -> EngineCore:
    wished = CUDAGraphMode(mode)
    execution = None if wished is CUDAGraphMode.NONE else SoftwareExecution()
    values = {"max_model_len": 64, "cudagraph_capture_sizes": SIZES, **settings}
    speculative = {**speculative, "step_graphs": step_graphs}
    config = config_of(folder, cudagraph_mode=wished, speculative_config=speculative, **values)
    return EngineCore(config, execution)


def head_graphs(core: EngineCore) -> DraftHeadGraphs:
    speculator = core.runner.speculator
    assert isinstance(speculator, EagleSpeculator)
    assert speculator.graphs is not None
    return speculator.graphs


@METHODS
@EACH_BACKEND
def test_tokens_are_the_same_with_graphs_and_without(
    folder: str, speculative: dict[str, Any], backend: str
) -> None:
    eager, core = (
        core_of(folder, mode, speculative, attention_backend=backend)
        for mode in ("NONE", "FULL_AND_PIECEWISE")
    )
    others = {name: prompt[::-1] for name, prompt in PROMPTS.items()}  # that are in no cache
    for prompts, params in zip((PROMPTS, others), FEW, strict=True):
        expected = generate(eager, prompts, params)
        assert generate(core, prompts, params) == expected, params
        assert generate(core, prompts, params) == expected, ("with cached prefixes", params)


@METHODS
def test_requests_that_are_preempted_go_on_the_same(
    folder: str, speculative: dict[str, Any]
) -> None:
    def tokens(mode: str) -> dict[str, list[int]]:
        core = core_of(folder, mode, speculative, attention_backend="lazy_plan", num_blocks=15)
        found = generate(core, PROMPTS, GREEDY)
        assert core.metrics()["preemptions"] > 0
        return found

    assert tokens("FULL_AND_PIECEWISE") == tokens("NONE")


@METHODS
def test_requests_that_end_one_after_the_other_shrink_the_batch(
    folder: str, speculative: dict[str, Any]
) -> None:
    lengths = dict(zip(PROMPTS, (12, 3, 9, 1, 5, 20, 2, 11, 4, 25), strict=True))

    def tokens(mode: str) -> dict[str, list[int]]:
        core = core_of(folder, mode, speculative, attention_backend="lazy_plan")
        for name, prompt in PROMPTS.items():
            core.add_request(name, prompt, SamplingParams(max_tokens=lengths[name]))
        return run(core)[0]

    assert tokens("FULL") == tokens("NONE")


@EACH_BACKEND
@pytest.mark.parametrize("share_right", [0.6, 1.0])
def test_drafts_that_are_right_are_verified_in_a_graph(
    folder: str, backend: str, share_right: float
) -> None:
    expected = {name: plain_tokens(folder, prompt, COUNT) for name, prompt in PROMPTS.items()}
    core = core_of(folder, "FULL", NGRAM, attention_backend=backend)
    texts = [PROMPTS[name] + expected[name] for name in PROMPTS]
    core.runner.speculator = Oracle(texts, 4, share_right)
    seen: set[int | None] = set()
    graphs = core.runner.graphs
    assert graphs is not None
    run_graph = graphs.run

    def watched(desc: Any) -> Any:
        seen.add(desc.uniform_query_len)
        return run_graph(desc)

    graphs.run = watched  # type: ignore[method-assign]
    assert generate(core, PROMPTS, GREEDY) == expected
    assert 5 in seen
    assert sum(core.metrics()["accepted_per_position"]) > 20


@EACH_BACKEND
def test_the_head_replays_prefill_and_decode_and_computes_what_it_does_eagerly(
    folder: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts too: a head that drafts worse would only be slower, and no token would tell."""

    def drafts(mode: str) -> tuple[list[Any], set[str]]:
        core = core_of(folder, mode, EAGLE, attention_backend=backend, step_graphs=False)
        assert core.runner.step_graphs is None
        speculator = core.runner.speculator
        assert isinstance(speculator, EagleSpeculator)
        proposed: list[Any] = []
        replayed: set[str] = set()
        propose = speculator.propose

        def watched(state: Any) -> Any:
            found = propose(state)
            if found is not None:
                count = state.common.num_reqs
                sampled = state.num_sampled[:count] > 0
                proposed.append(found.token_ids[:count][sampled].tolist())
            return found

        monkeypatch.setattr(speculator, "propose", watched)
        if mode == "FULL":
            for name in ("prefill", "decode"):
                _watch(getattr(head_graphs(core), name), name, replayed, monkeypatch)
        generate(core, PROMPTS, GREEDY)
        return proposed, replayed

    eager, _ = drafts("NONE")
    graphed, replayed = drafts("FULL")
    assert graphed == eager
    assert replayed == {"prefill", "decode"}


@METHODS
@EACH_BACKEND
def test_a_step_of_decodes_is_one_replay_after_the_models(
    folder: str, backend: str, speculative: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what a step without graphs says, drafts included, and does nothing besides."""

    def results(mode: str) -> tuple[list[Any], int]:
        core = core_of(folder, mode, speculative, attention_backend=backend)
        runner, found, replays = core.runner, [], 0
        compute = runner.run

        def watched(batch: Any) -> Any:
            nonlocal replays
            decodes = all(part.samples and part.count <= 5 for part in batch.requests)
            with monkeypatch.context() as patch:
                if (
                    mode == "FULL"
                    and decodes
                    and batch.num_tokens == sum(part.num_drafts + 1 for part in batch.requests)
                ):
                    replays += 1
                    for module, name in ((step, "verify_and_draft"), (runner, "_logits")):
                        patch.setattr(module, name, refuse)
                result = compute(batch)
            found.append((result.sampled, result.drafts))
            return result

        monkeypatch.setattr(runner, "run", watched)
        generate(core, PROMPTS, GREEDY)
        return found, replays

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a step that is captured is computed")

    graphed, replays = results("FULL")
    assert replays > 3
    assert graphed == results("NONE")[0]


def test_steps_go_on_without_graphs_of_their_own_where_these_fail(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("it cannot be captured")

    with monkeypatch.context() as patch:
        patch.setattr("sample_engine.speculate.step_graphs.verify_and_draft", fails)
        core = core_of(folder, "FULL", NGRAM)
    assert core.runner.step_graphs is None
    assert "without a graph of their own, which is slower: Capturing a graph" in caplog.text
    assert "it cannot be captured" in caplog.text
    for name, tokens in generate(core, PROMPTS, GREEDY).items():
        assert tokens == plain_tokens(folder, PROMPTS[name], COUNT)


def test_steps_that_ask_for_more_go_without_their_graph(folder: str) -> None:
    core = core_of(folder, "FULL", EAGLE)
    params = SamplingParams(max_tokens=COUNT, logprobs=1)
    tokens: dict[str, list[int]] = {name: [] for name in PROMPTS}
    lines = 0
    for name, prompt in PROMPTS.items():
        core.add_request(name, prompt, params if name == "own-8" else GREEDY)
    while core.has_unfinished():
        for output in core.step():
            tokens[output.request_id] += output.new_token_ids
            lines += len(output.logprobs)
    assert lines == COUNT
    for name, prompt in PROMPTS.items():
        assert tokens[name] == plain_tokens(folder, prompt, COUNT)


def _watch(manager: Any, name: str, seen: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_graph = manager.run

    def watched(desc: Any) -> None:
        seen.add(name)
        run_graph(desc)

    monkeypatch.setattr(manager, "run", watched)


def test_model_and_head_share_a_pool_and_the_head_attends_by_the_models_plan(folder: str) -> None:
    core = core_of(folder, "FULL", EAGLE, attention_backend="lazy_plan")
    graphs, model = head_graphs(core), core.runner.graphs
    assert model is not None
    assert graphs.prefill.pool is graphs.decode.pool is model.manager.pool
    for desc in graphs.prefill.descs:
        plan = captured_state(model.manager, desc).attn_metadata["layers.0"].plan
        assert captured_state(graphs.prefill, desc).attn_metadata["layers.0"].plan is plan
    names = {
        desc: graphs.prefill._graphs[desc].names  # type: ignore[attr-defined]
        for desc in graphs.prefill.descs
    }
    assert not any("cumsum" in each for each in names.values()), "the plan is the model's"
    for desc in graphs.decode.descs:
        assert "cumsum" in graphs.decode._graphs[desc].names  # type: ignore[attr-defined]


def test_decode_plans_are_made_from_the_lengths_of_each_pass(folder: str) -> None:
    core = core_of(folder, "FULL", EAGLE, attention_backend="lazy_plan")
    speculator = core.runner.speculator
    assert isinstance(speculator, EagleSpeculator)
    graphs, buffers = head_graphs(core), speculator.buffers.cut(3)
    (desc,) = (each for each in graphs.decode.descs if each.num_reqs == 3)
    plan = captured_state(graphs.decode, desc).attn_metadata["eagle.0"].plan
    with torch.inference_mode():
        for position in (50, 3):
            buffers.positions.fill_(position)
            buffers.seq_lens.fill_(position + 1)
            for step in (1, 2):
                graphs.run_decode(3)
                assert plan.splits.item_stop.max() == position + step + 1
    assert graphs.has_decode(3)
    assert not graphs.has_decode(7)
