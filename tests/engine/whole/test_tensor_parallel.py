"""Engines of two ranks: a real model over gloo, against one process, and how they end."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sample_engine import LLM, ConfigError, EngineDeadError, RemoteError, SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.engine_core import EngineCore
from sample_engine.parallel.place import RankPlace
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    add_head,
    model_folder,
    pausing_core,
    plain_tokens,
)
from tests.engine.support.process import (
    is_running,
    nothing_left_behind,
    wait_until_stopped,
)

ENDLESS = SamplingParams(max_tokens=100, ignore_eos=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a process or a descriptor behind."""
    with nothing_left_behind():
        yield


def settings(folder: str, **changed: Any) -> dict[str, Any]:
    """The keyword arguments of an engine of two ranks."""
    values: dict[str, Any] = {
        "model": folder,
        "device": "cpu",
        "worker_method": "fork",
        "tensor_parallel_size": 2,
        "block_size": 4,
        "num_blocks": 60,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
    }
    return {**values, **changed}


def tokens(llm: LLM, params: SamplingParams) -> dict[str, list[int]]:
    """What is generated for each prompt."""
    given = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]
    outputs = llm.generate(given, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(outputs)
    return dict(zip(PROMPTS, (list(output.token_ids) for output in outputs), strict=True))


def expected(folder: str, params: SamplingParams) -> dict[str, list[int]]:
    """What one process without a cache makes of them."""
    return {name: plain_tokens(folder, each, COUNT, params) for name, each in PROMPTS.items()}


def test_two_ranks_make_the_tokens_of_one_process(folder: str) -> None:
    # The vocabulary is odd, so it is filled up; prompts come in chunks and leave preempted.
    with LLM(**settings(folder)) as llm:
        assert llm.info()["tensor_parallel_size"] == 2
        assert tokens(llm, GREEDY) == expected(folder, GREEDY)
        assert tokens(llm, SAMPLED) == expected(folder, SAMPLED)
        assert tokens(llm, GREEDY) == expected(folder, GREEDY)  # from the prefix cache
        pids = llm.info()["rank_pids"]
        assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("speculator", ["eagle", "ngram"])
def test_two_ranks_share_one_kv_head_and_speculate(speculator: str, tmp_path: Path) -> None:
    shape = {"num_key_value_heads": 1, "tie_word_embeddings": True, "vocab_size": 98}
    folder = add_head(model_folder(tmp_path / "model", **shape))
    speculative = {"method": speculator, "num_speculative_tokens": 2}
    with LLM(**settings(folder, speculative_config=speculative)) as llm:
        assert tokens(llm, GREEDY) == expected(folder, GREEDY)
        assert llm.metrics()["drafted_per_position"]


def test_random_weights_are_those_of_one_process(folder: str) -> None:
    found = []
    for ranks, method in ((1, "inproc"), (2, "fork")):
        changed = {"load_format": "dummy", "tensor_parallel_size": ranks, "worker_method": method}
        with LLM(**settings(folder, **changed)) as llm:
            found.append(tokens(llm, GREEDY))
    assert found[0] == found[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_takes_the_other_with_it(rank: int, folder: str) -> None:
    # It is in a step then, however long it takes to kill it: else all may have been generated.
    with LLM(**settings(folder, core_factory=functools.partial(pausing_core, rank))) as llm:
        pids = llm.info()["rank_pids"]
        stream = llm.generate_stream({"prompt_token_ids": [1]}, ENDLESS)
        next(stream)
        os.kill(pids[rank], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=rf"Rank {rank} .*\(pid {pids[rank]}.*SIGKILL"):
            list(stream)
        assert not any(is_running(pid) for pid in pids)


def failing(config: EngineConfig, place: RankPlace) -> EngineCore:
    """A core whose rank 1 fails when it runs the model."""
    core = EngineCore(config, place=place)
    if place.rank == 1:

        def run(batch: object) -> None:
            raise ZeroDivisionError("nothing is left to divide by")

        core.runner.run = run  # type: ignore[method-assign, assignment]
    return core


def test_an_error_of_a_rank_in_a_step_comes_with_its_traceback(folder: str) -> None:
    with LLM(**settings(folder, core_factory=failing)) as llm:
        with pytest.raises(RemoteError, match=r"^Rank 1 .* while running: ZeroDiv") as caught:
            llm.generate({"prompt_token_ids": [1]}, ENDLESS)
        assert "in run" in str(caught.value)


def test_a_stuck_rank_is_named_by_the_others_that_wait_for_it(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMPLE_ENGINE_STEP_SECONDS", "3")
    with LLM(**settings(folder)) as llm:
        pids = llm.info()["rank_pids"]
        os.kill(pids[1], signal.SIGSTOP)
        wait_until_stopped(pids[1])
        with pytest.raises(EngineDeadError, match="wait for each other") as caught:
            llm.generate({"prompt_token_ids": [1]}, ENDLESS)
        first, _, rest = str(caught.value).partition("\n")
        assert f"Rank 1 of the engine core (pid {pids[1]}, started by fork) was stopped" in first
        assert f"Rank 0 of the engine core (pid {pids[0]}, started by fork):" in rest
        assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0 must be a whole number"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size=True must be a whole number"),
        ({"tensor_parallel_size": "2"}, "tensor_parallel_size='2' must be a whole number"),
        ({"tensor_parallel_size": 2.0}, "tensor_parallel_size=2.0 must be a whole number"),
        (
            {"tensor_parallel_size": 3},
            "tensor_parallel_size=3 does not go with .*num_attention_heads=4 is no multiple of it; "
            "num_key_value_heads=2 is neither",
        ),
        (
            {"kv_transfer_config": {"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"}},
            "kv_transfer_config and tensor_parallel_size=2 do not go together: each rank has",
        ),
        ({"worker_method": "inproc"}, "worker_method='inproc' starts no process, and tensor"),
        ({"device": "cuda:1"}, "device='cuda:1' is one GPU, and tensor_parallel_size=2 needs 2"),
        ({"device": "cuda"}, r"tensor_parallel_size=2 needs 2 GPUs, and (no GPU can|this process)"),
        (
            {"cudagraph_mode": "FULL"},
            "cudagraph_mode asks for CUDA graphs, but the model runs on 'cpu'",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    folder: str, changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=words):
        LLM(**settings(folder, **changed))


def test_a_process_that_may_have_no_children_is_told_so(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMPLE_ENGINE_WORKER_METHOD", "inproc")
    words = "tensor_parallel_size=2 needs a process for each rank, .*METHOD=inproc is set"
    with pytest.raises(ConfigError, match=words):
        LLM(**settings(folder, worker_method="auto"))
