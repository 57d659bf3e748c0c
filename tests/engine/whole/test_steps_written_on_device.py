"""Where an engine speculates in graphs, a step writes the inputs of the next one by itself.

What it writes is what the CPU would have written: that is compared for each step that is run so.
"""

from __future__ import annotations

from typing import Any

import pytest

from sample_engine.batch.input_batch import InputBatch
from sample_engine.batch.model_input import ModelInput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch
from sample_engine.config import CUDAGraphMode
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import PROMPTS, config_of, generate
from tests.engine.support.graphs import SoftwareExecution

EAGLE = {"method": "eagle", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def contents(inputs: ModelInput) -> dict[str, Any]:
    """Every number of a step that is on the device."""
    common, drafts = inputs.common, inputs.drafts
    assert drafts is not None
    named = {
        "input_ids": inputs.input_ids,
        "positions": inputs.positions,
        "query_start_loc": common.query_start_loc,
        "seq_lens": common.seq_lens,
        "block_table": common.block_table,
        "slot_mapping": common.slot_mapping,
        **{name: value for name, value in vars(drafts).items() if value is not None},
    }
    return {name: value.tolist() for name, value in named.items()}


class Watched:
    """Compares each step that the device has written with what the CPU writes for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_device = self.by_cpu = 0
        as_written, prepare = InputBatch._as_written, InputBatch.prepare

        def compared(
            batch: InputBatch, scheduled: ScheduledBatch, reqs: int, tokens: int
        ) -> ModelInput:
            found = as_written(batch, scheduled, reqs, tokens)
            numbers = contents(found)
            expected = prepare(batch, scheduled, reqs, tokens)
            assert contents(expected) == numbers
            assert expected.num_sampled == found.num_sampled
            assert expected.sampled_rows is found.sampled_rows is None
            self.by_device += 1
            return found

        def counted(batch: InputBatch, *args: Any, **named: Any) -> ModelInput:
            before = self.by_device
            found = prepare(batch, *args, **named)
            self.by_cpu += self.by_device == before
            return found

        monkeypatch.setattr(InputBatch, "_as_written", compared)
        monkeypatch.setattr(InputBatch, "prepare", counted)


def core_of(folder: str, speculative: dict[str, Any], **settings: Any) -> EngineCore:
    values: dict[str, Any] = {
        "max_model_len": 64,
        "cudagraph_mode": CUDAGraphMode("FULL_AND_PIECEWISE"),
        "speculative_config": speculative,
        **settings,
    }
    return EngineCore(config_of(folder, **values), SoftwareExecution())


@pytest.mark.parametrize("speculative", [EAGLE, NGRAM], ids=["eagle", "ngram"])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 8])
def test_the_device_writes_what_the_cpu_would(
    folder: str, monkeypatch: pytest.MonkeyPatch, max_num_seqs: int, speculative: dict[str, Any]
) -> None:
    """Of 3 the graph for 4 requests is filled up, and batches change as requests come and go."""
    settings = {"max_num_seqs": max_num_seqs, "block_size": 16}
    plain = EngineCore(config_of(folder, max_model_len=64, **settings))
    expected = generate(plain, PROMPTS, PARAMS)
    watched = Watched(monkeypatch)
    assert generate(core_of(folder, speculative, **settings), PROMPTS, PARAMS) == expected
    assert watched.by_device > 0
    if max_num_seqs == 1:
        # The first steps of a text are not, nor the last ones, for which fewer drafts are taken.
        assert watched.by_device > 2 * watched.by_cpu


def test_a_step_that_is_not_as_foreseen_is_written_by_the_cpu(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few blocks for all: requests are preempted, and have others when they go on."""
    settings = {"max_num_seqs": 4, "block_size": 16, "num_blocks": 8}
    plain = EngineCore(config_of(folder, max_model_len=64, **settings))
    expected = generate(plain, PROMPTS, PARAMS)
    watched = Watched(monkeypatch)
    core = core_of(folder, EAGLE, **settings)
    assert generate(core, PROMPTS, PARAMS) == expected
    assert core.metrics()["preemptions"] > 0
    assert watched.by_device > 0
    assert watched.by_cpu > 0


def test_a_step_that_no_graph_follows_is_written_by_the_cpu(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of a request that asks for log probabilities."""
    told = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
    expected = generate(EngineCore(config_of(folder, max_model_len=64)), PROMPTS, told)
    core = core_of(folder, EAGLE)
    generate(core, PROMPTS, PARAMS)
    watched = Watched(monkeypatch)
    assert generate(core, PROMPTS, told) == expected
    assert watched.by_device == 0


@pytest.mark.gpu
@pytest.mark.parametrize("speculative", [EAGLE, NGRAM], ids=["eagle", "ngram"])
@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_the_kernel_writes_what_the_cpu_would(
    folder: str, monkeypatch: pytest.MonkeyPatch, max_num_seqs: int, speculative: dict[str, Any]
) -> None:
    on_gpu: dict[str, Any] = {
        "device": "cuda",
        "dtype": "float32",
        "block_size": 16,
        "max_model_len": 64,
        "max_num_seqs": max_num_seqs,
    }
    expected = generate(EngineCore(config_of(folder, **on_gpu)), PROMPTS, PARAMS)
    mode = CUDAGraphMode("FULL_AND_PIECEWISE")
    config = config_of(folder, cudagraph_mode=mode, speculative_config=speculative, **on_gpu)
    core = EngineCore(config)
    watched = Watched(monkeypatch)
    assert generate(core, PROMPTS, PARAMS) == expected
    assert watched.by_device > 0
    core.shutdown()
