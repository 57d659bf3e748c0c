"""Asynchronous steps on a GPU make the tokens of synchronous ones: graphs, processes, ends.

Everything is in float32, as in ``test_graphs_on_gpu``.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from sample_engine import LLM, SamplingParams
from sample_engine.batch.request import FinishReason
from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    VOCAB,
    config_of,
    generate,
    model_folder,
    run,
)

pytestmark = pytest.mark.gpu

MODES = pytest.mark.parametrize("mode", ["NONE", "FULL", "FULL_AND_PIECEWISE"])
ENDLESS = SamplingParams(max_tokens=90, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    # Kernels want heads of at least 16.
    return model_folder(tmp_path_factory.mktemp("async") / "model", head_dim=32, hidden_size=128)


def settings_of(mode: str, **settings: Any) -> dict[str, Any]:
    return {"device": "cuda", "dtype": "float32", "block_size": 16, "num_blocks": 64,
            "cudagraph_mode": mode, "max_num_seqs": 4, **settings}  # fmt: skip


def core_of(folder: str, mode: str, *, ahead: bool = True, **settings: Any) -> EngineCore:
    values = settings_of(mode, async_scheduling=ahead, **settings)
    values["cudagraph_mode"] = CUDAGraphMode(mode)
    return EngineCore(config_of(folder, **values))


@functools.cache
def synchronous(folder: str, params: SamplingParams) -> dict[str, list[int]]:
    """What the prompts are continued with where each step is waited for."""
    core = core_of(folder, "NONE", ahead=False)
    found = generate(core, PROMPTS, params)
    core.shutdown()
    return found


@MODES
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("settings", [{}, {"num_blocks": 8}], ids=["", "few blocks"])
def test_the_tokens_are_those_of_synchronous_steps(
    folder: str, mode: str, params: SamplingParams, settings: dict[str, Any]
) -> None:
    core = core_of(folder, mode, **settings)
    assert generate(core, PROMPTS, params) == synchronous(folder, params)
    assert core.metrics()["free_blocks"] == core.runner.num_blocks - 1
    core.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NONE", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("method", ["inproc", "spawn"])
def test_they_are_so_through_llm_and_a_stream_may_be_closed_in_a_step(
    folder: str, mode: str, method: str
) -> None:
    expected = [
        synchronous(folder, params)[name] for params in (GREEDY, SAMPLED) for name in PROMPTS
    ]
    given = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]
    settings = settings_of(mode, worker_method=method, async_scheduling=True)
    with LLM(model=folder, **settings) as llm:
        stream = llm.generate_stream({"prompt_token_ids": PROMPTS["own-8"]}, ENDLESS)
        assert next(stream).token_ids
        stream.close()  # type: ignore[attr-defined]
        outputs = [
            output
            for params in (GREEDY, SAMPLED)
            for output in llm.generate(given, params, use_tqdm=False)
        ]
        assert [output.error for output in outputs] == [None] * len(outputs)
        assert [list(output.token_ids) for output in outputs] == expected
        metrics = llm.metrics()
        assert metrics["running_requests"] == metrics["waiting_requests"] == 0
        assert metrics["free_blocks"] == 63


@MODES
def test_an_abort_in_the_middle_leaves_the_others_their_tokens(folder: str, mode: str) -> None:
    core = core_of(folder, mode)
    core.add_request("leaves", PROMPTS["own-15"], ENDLESS)
    names = ["alike-5", "own-8", "own-33"]
    for name in names:
        core.add_request(name, PROMPTS[name], GREEDY)
    tokens: dict[str, list[int]] = {}
    for step in range(100):
        if step == 5:  # one step is on the device, and its results are still to come
            core.abort(["leaves"])
        for output in core.step():
            assert step <= 5 or output.request_id != "leaves"
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        if not core.has_unfinished():
            break
    expected = synchronous(folder, GREEDY)
    assert {name: tokens[name] for name in names} == {name: expected[name] for name in names}
    assert 0 < len(tokens["leaves"]) < COUNT
    assert core.metrics()["free_blocks"] == core.runner.num_blocks - 1
    core.shutdown()


@MODES
def test_a_row_of_nan_ends_its_request_alone(folder: str, mode: str) -> None:
    names = ["alike-5", "own-8", "own-33"]
    expected = synchronous(folder, GREEDY)
    used = {token for name in names for token in [*PROMPTS[name], *expected[name]]}
    bad = next(token for token in range(VOCAB) if token not in used)
    core = core_of(folder, mode)
    core.runner.model.embed_tokens.weight.data[bad] = float("nan")
    core.add_request("bad", [*PROMPTS["own-8"], bad], GREEDY)
    for name in names:
        core.add_request(name, PROMPTS[name], GREEDY)
    tokens, last = run(core)
    assert tokens.pop("bad") == []
    assert tokens == {name: expected[name] for name in names}
    assert last["bad"].finish_reason is FinishReason.ERROR
    words = r"Request 'bad': in step \d+ of the engine the model gave NaN or infinity as"
    assert re.match(words, str(last["bad"].error))
    assert core.metrics()["free_blocks"] == core.runner.num_blocks - 1
    core.shutdown()
