"""A head that guesses among a part of the vocabulary: the same texts, and drafts from that part."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, StepResult
from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from sample_engine.model.config_file import TINY_FOLDER
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    VOCAB,
    add_head,
    config_of,
    generate,
    model_folder,
    plain_tokens,
)
from tests.engine.support.graphs import SoftwareExecution
from tests.engine.support.speculation import EAGLE, held_out_prompts
from tests.engine.support.weights import cut_head

ASCII = torch.arange(128)
ODD = torch.arange(1, VOCAB, 2)
FEW = {name: PROMPTS[name] for name in ("own-8", "own-33", "alike-5")}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small random model, whose head guesses odd tokens alone."""
    folder = add_head(model_folder(tmp_path_factory.mktemp("odd")))
    return str(cut_head(Path(folder), ODD))


def drafts_of(core: EngineCore, params: SamplingParams) -> tuple[dict[str, list[int]], list[Any]]:
    """What is generated, and what was drafted in each step."""
    seen: list[Any] = []
    run_step = core.runner.run

    def spy(batch: ScheduledBatch) -> StepResult:
        result = run_step(batch)
        seen.append(result.drafts)
        return result

    core.runner.run = spy  # type: ignore[method-assign]
    return generate(core, FEW, params), seen


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_texts_are_the_same_and_drafts_are_of_the_vocabulary(
    odd: str, params: SamplingParams
) -> None:
    strict = {**EAGLE, "rejection_sample_method": "strict"}
    tokens, drafts = drafts_of(EngineCore(config_of(odd, speculative_config=strict)), params)
    assert tokens == {
        name: plain_tokens(odd, prompt, COUNT, params) for name, prompt in FEW.items()
    }
    drafted = {token for step in drafts for each in step for token in each}
    assert len(drafted) > 5
    assert all(token % 2 for token in drafted)


def test_drafts_are_drawn_and_rejected_with_the_others_excluded(odd: str) -> None:
    core = EngineCore(config_of(odd, speculative_config=EAGLE))
    hot = dataclasses.replace(SAMPLED, temperature=2.0, top_k=0, top_p=1.0)
    tokens, drafts = drafts_of(core, hot)
    assert [len(each) for each in tokens.values()] == [COUNT] * len(FEW)
    assert any(token % 2 == 0 for each in tokens.values() for token in each)
    drafted = [token for step in drafts for each in step for token in each]
    assert drafted
    assert all(token % 2 for token in drafted)


@pytest.mark.parametrize("step_graphs", [True, False])
def test_graphs_draft_the_same(odd: str, step_graphs: bool) -> None:
    given: dict[str, Any] = {"max_model_len": 64, "attention_backend": "reference"}
    speculative = {**EAGLE, "step_graphs": step_graphs}
    eager = EngineCore(config_of(odd, speculative_config=speculative, **given))
    captured = EngineCore(
        config_of(
            odd,
            speculative_config=speculative,
            cudagraph_mode=CUDAGraphMode.FULL,
            cudagraph_capture_sizes=(1, 3, 12),
            **given,
        ),
        SoftwareExecution(),
    )
    assert (captured.runner.step_graphs is not None) == step_graphs
    assert drafts_of(captured, GREEDY) == drafts_of(eager, GREEDY)


def test_a_head_without_tokens_that_do_not_come_drafts_as_well_as_the_whole_one(
    tmp_path: Path,
) -> None:
    """The model that comes with the engine writes code: ASCII."""
    folder = tmp_path / "tiny"
    shutil.copytree(TINY_FOLDER, folder)
    cut_head(folder, ASCII)
    prompts = held_out_prompts(2, 48)
    params = SamplingParams(max_tokens=32, ignore_eos=True)
    found = []
    for model in (str(folder), "tiny"):
        core = EngineCore(
            config_of(model, speculative_config=EAGLE, block_size=16, max_model_len=256)
        )
        found.append((generate(core, prompts, params), core.metrics()["tokens_per_step"]))
        core.shutdown()
    assert found[0] == found[1]
    assert found[0][1] > 2
