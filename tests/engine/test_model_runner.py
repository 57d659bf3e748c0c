"""The runner by itself: what is sampled, what a forward pass depends on, how memory is sized."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from sample_engine.batch.request import Request, RequestStatus
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, ScheduledRequest
from sample_engine.config import EngineConfig
from sample_engine.kv_cache.memory import (
    bytes_per_block,
)
from sample_engine.model_runner import ModelRunner
from tests.engine.support.engine import (
    MODEL_LEN,
    VOCAB,
    config_of,
    model_folder,
    plain_logits,
    plain_tokens,
)

PROMPT = random.Random(2).choices(range(VOCAB), k=11)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return model_folder(tmp_path / "model")


def running(prompt: list[int], blocks: list[int], arrival: int = 0) -> Request:
    request = Request(f"r{arrival}", prompt, SamplingParams(), 0, arrival)
    request.block_ids = blocks
    request.status = RequestStatus.RUNNING
    return request


def test_nothing_is_sampled_in_the_middle_of_a_prompt(folder: str) -> None:
    runner = ModelRunner(config_of(folder))
    chunked, whole = running(PROMPT, [5, 2, 9]), running(PROMPT, [3, 4, 6], 1)
    first = ScheduledBatch((ScheduledRequest(chunked, 0, 7), ScheduledRequest(whole, 0, 11)))
    expected = tuple(plain_tokens(folder, PROMPT, 1))
    assert runner.run(first).sampled == ((), expected)
    second = ScheduledBatch((ScheduledRequest(chunked, 7, 4),))
    assert runner.run(second).sampled == (expected,)


def test_a_step_without_any_sampled_token_runs(folder: str) -> None:
    runner = ModelRunner(config_of(folder))
    batch = ScheduledBatch((ScheduledRequest(running(PROMPT, [5, 2, 9]), 0, 3),))
    result = runner.run(batch)
    assert result.sampled == ((),)
    assert result.drafts == ()


@pytest.mark.parametrize("pads", [(0, 0), (4, 0), (0, 20), (5, 32)])
def test_a_filled_up_batch_gives_the_same_hidden_states(folder: str, pads: tuple[int, int]) -> None:
    runner = ModelRunner(config_of(folder))
    requests = (running(PROMPT, [5, 2, 9]), running(PROMPT[:4], [7], 1))
    batch = ScheduledBatch(
        (ScheduledRequest(requests[0], 0, 11), ScheduledRequest(requests[1], 0, 4))
    )
    with torch.inference_mode():
        inputs = runner.inputs.prepare(batch, *pads)
        metadata = runner.build_metadata(inputs.common)
        output = runner.forward(
            inputs.input_ids, inputs.positions, inputs.common.slot_mapping, metadata
        )
        logits = runner.model.compute_logits(output.hidden[:15])
    assert output.hidden.shape[0] == max(15, pads[1])
    torch.testing.assert_close(logits[:11], plain_logits(runner.model, PROMPT))
    torch.testing.assert_close(logits[11:], plain_logits(runner.model, PROMPT[:4]))
    for cache in runner.caches:
        assert not cache.key[0].any(), "padding was written to the null block"


def test_layers_have_names_and_share_the_metadata_of_a_step(folder: str) -> None:
    runner = ModelRunner(config_of(folder))
    batch = ScheduledBatch((ScheduledRequest(running(PROMPT, [5, 2, 9]), 0, 11),))
    metadata = runner.build_metadata(runner.inputs.prepare(batch).common)
    assert list(metadata) == ["layers.0", "layers.1"]
    assert metadata["layers.0"] is metadata["layers.1"]


def test_the_forward_pass_takes_its_metadata_from_its_arguments_alone(folder: str) -> None:
    """A step that was prepared in between does not change what an earlier one computes with."""
    runner = ModelRunner(config_of(folder))
    batch = ScheduledBatch((ScheduledRequest(running(PROMPT, [5, 2, 9]), 0, 11),))
    with torch.inference_mode():
        inputs = runner.inputs.prepare(batch)
        common = inputs.common
        ids, positions = inputs.input_ids.clone(), inputs.positions.clone()
        slots = common.slot_mapping.clone()
        metadata = runner.build_metadata(common)
        first = runner.forward(ids, positions, slots, metadata).hidden.clone()
        for cache in runner.caches:
            cache.key.zero_()
            cache.value.zero_()
        again = runner.forward(ids, positions, slots, metadata).hidden
    assert first.equal(again)


def test_the_largest_step_runs_and_leaves_nothing_behind(folder: str) -> None:
    runner = ModelRunner(config_of(folder, max_num_seqs=5, max_num_batched_tokens=48))
    caches = runner.caches
    runner.run_largest_step()
    runner.caches = caches
    prompt = running(PROMPT, [5, 2, 9])
    result = runner.run(ScheduledBatch((ScheduledRequest(prompt, 0, 11),)))
    assert result.sampled == (tuple(plain_tokens(folder, PROMPT, 1)),)
    assert not any(cache.key[0].any() for cache in caches)


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens"), [(1, 500), (64, 3), (3, 1000), (1, 1)]
)
def test_the_largest_step_fits_any_configuration(
    folder: str, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    runner = ModelRunner(
        config_of(folder, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    )
    runner.run_largest_step()


def test_a_cpu_runner_sizes_its_cache_so(folder: str) -> None:
    runner = ModelRunner(config_of(folder, num_blocks=None, max_num_seqs=3))
    assert runner.num_blocks == 1 + 3 * MODEL_LEN // 4
    assert runner.caches[0].key.shape[0] == runner.num_blocks


def test_a_shorter_context_may_be_asked_for(folder: str) -> None:
    runner = ModelRunner(config_of(folder, num_blocks=None, max_num_seqs=1, max_model_len=10))
    assert runner.max_model_len == 10
    assert runner.num_blocks == 1 + 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_that_of_weights_and_cache(folder: str, dtype: str) -> None:
    runner = ModelRunner(config_of(folder, dtype=dtype))
    assert runner.dtype is getattr(torch, dtype)
    assert runner.caches[0].key.dtype is runner.model.embed_tokens.weight.dtype is runner.dtype


@pytest.mark.gpu
def test_gpu_memory_is_sized_from_what_is_free(folder: str) -> None:
    config = config_of(folder, device="cuda", num_blocks=None, gpu_memory_utilization=0.05)
    before, _ = torch.cuda.mem_get_info()
    runner = ModelRunner(config)
    after, _ = torch.cuda.mem_get_info()
    taken = before - after
    size = bytes_per_block(runner.spec, runner.num_layers)
    free = max(before, after + torch.cuda.memory_reserved())  # others may have let go of some
    assert 0.5 * 0.05 * before < runner.num_blocks * size < 0.05 * free
    assert taken < 0.05 * before + (1 << 30)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_gpu_makes_the_tokens_of_the_plain_loop(folder: str, backend: str) -> None:
    runner = ModelRunner(
        EngineConfig(
            model=folder,
            device="cuda",
            dtype="float32",
            block_size=16,
            num_blocks=50,
            attention_backend=backend,
        )
    )
    request = running(PROMPT, [5, 2, 9])
    (sampled,) = runner.run(ScheduledBatch((ScheduledRequest(request, 0, 11),))).sampled
    assert sampled == tuple(plain_tokens(folder, PROMPT, 1))
