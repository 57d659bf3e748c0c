"""Engines of two ranks on two GPUs: sums in each other's memory, in CUDA graphs too; their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engines need it")
pytest.importorskip("msgspec", reason="the engines need it")
pytest.importorskip("triton", reason="the kernels need it")

from sample_engine import LLM, EngineDeadError, SamplingParams
from sample_engine.device.platform import gpu_count
from tests.engine.support.engine import COUNT, GREEDY, PROMPTS, model_folder, plain_tokens
from tests.engine.support.process import is_running, wait_until_stopped

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.gpu

ENDLESS = SamplingParams(max_tokens=100, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model whose heads the kernels take."""
    if gpu_count() < 2:
        pytest.skip(f"needs 2 GPUs, and this process sees {gpu_count()}")
    return model_folder(tmp_path_factory.mktemp("ranks") / "model", head_dim=32, hidden_size=128)


def settings(folder: str, **changed: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model": folder,
        "device": "cuda",
        "dtype": "float32",
        "tensor_parallel_size": 2,
        "num_blocks": 60,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
    }
    return {**values, **changed}


@pytest.mark.parametrize("mode", ["NONE", "FULL", "PIECEWISE", "FULL_AND_PIECEWISE"])
def test_two_gpus_make_the_tokens_of_one_process_with_graphs_too(folder: str, mode: str) -> None:
    given = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]
    with LLM(**settings(folder, cudagraph_mode=mode)) as llm:
        assert llm.info()["cudagraph_mode"] == mode
        assert llm.info()["device"] == "cuda:0"
        assert llm.info()["sums_over_ranks"] == ways()[0]
        outputs = llm.generate(given, GREEDY, use_tqdm=False)
    for prompt, output in zip(PROMPTS.values(), outputs, strict=True):
        assert list(output.token_ids) == plain_tokens(folder, prompt, COUNT, GREEDY)


def ways() -> tuple[str, str]:
    """How sums are computed where the engine may choose, and by NCCL alone."""
    import torch

    if torch.cuda.can_device_access_peer(0, 1):
        return "peer memory up to 16 tokens, else nccl", "nccl: disable_custom_all_reduce=True"
    return "nccl: GPU 0 cannot reach the memory of GPU 1", "nccl: disable_custom_all_reduce=True"


def test_nccl_alone_makes_the_same_tokens(folder: str) -> None:
    given = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]
    found = []
    for disabled in (False, True):
        changed = {"disable_custom_all_reduce": disabled, "cudagraph_mode": "FULL"}
        with LLM(**settings(folder, **changed)) as llm:
            assert llm.info()["sums_over_ranks"] == ways()[disabled]
            outputs = llm.generate(given, GREEDY, use_tqdm=False)
        found.append([list(output.token_ids) for output in outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize("steps", [3, 400])
def test_peer_sums_are_right_again_and_again(steps: int) -> None:
    """Sums of many sizes, in a row and in a graph; a rank that runs ahead does no harm."""
    if gpu_count() < 2:
        pytest.skip(f"needs 2 GPUs, and this process sees {gpu_count()}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.support.peer_sums_on_gpu", str(steps)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 2


# In a process of its own: this one may have initialized CUDA by now, or have other threads.
@pytest.mark.cuda_isolated(method="spawn")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_rank_is_on_a_gpu_of_its_own(folder: str, method: str) -> None:
    pynvml = pytest.importorskip("pynvml")
    with LLM(**settings(folder, worker_method=method)) as llm:
        assert llm.info()["worker_method"] == method
        llm.generate({"prompt_token_ids": [1]}, SamplingParams(max_tokens=2))
        pynvml.nvmlInit()
        try:
            users = []
            for number in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                users.append({process.pid for process in processes})
        finally:
            pynvml.nvmlShutdown()
        pids = llm.info()["rank_pids"]
        if not any(pid in each for pid in pids for each in users):
            pytest.skip("the driver numbers processes otherwise than this container does")
        assert [sum(pid in each for each in users) for pid in pids] == [1, 1]


@pytest.mark.parametrize("mode", ["NONE", "FULL"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_does_not_leave_the_other_in_a_kernel_for_ever(
    folder: str, rank: int, mode: str
) -> None:
    with LLM(**settings(folder, cudagraph_mode=mode)) as llm:
        pids = llm.info()["rank_pids"]
        stream = llm.generate_stream({"prompt_token_ids": [1]}, ENDLESS)
        next(stream)
        os.kill(pids[rank], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=rf"Rank {rank} .*\(pid {pids[rank]}.*SIGKILL"):
            list(stream)
        assert not any(is_running(pid) for pid in pids)


def test_a_stuck_rank_is_named_while_the_other_waits_in_a_kernel(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMPLE_ENGINE_STEP_SECONDS", "5")
    with LLM(**settings(folder, cudagraph_mode="FULL")) as llm:
        pids = llm.info()["rank_pids"]
        os.kill(pids[1], signal.SIGSTOP)
        wait_until_stopped(pids[1])
        with pytest.raises(EngineDeadError, match=r"Rank 1 .* was stopped by a signal"):
            llm.generate({"prompt_token_ids": [1]}, ENDLESS)
        assert not any(is_running(pid) for pid in pids)


def test_more_ranks_than_gpus_are_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(
        ValueError, match="tensor_parallel_size=2 needs 2 GPUs, and this process sees one"
    ):
        LLM(**settings(folder))
