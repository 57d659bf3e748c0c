"""Asynchronous steps through the whole engine: processes, ranks, refusals and kills."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from sample_engine import LLM, ConfigError, EngineDeadError, SamplingParams
from sample_engine.config import EngineConfig
from tests.engine.support.engine import (
    COUNT,
    GREEDY,
    PROMPTS,
    SAMPLED,
    pausing_core,
    plain_tokens,
)
from tests.engine.support.process import is_running, nothing_left_behind

ENDLESS = SamplingParams(max_tokens=100, ignore_eos=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a process or a descriptor behind."""
    with nothing_left_behind():
        yield


def settings(folder: str, **changed: Any) -> dict[str, Any]:
    """The keyword arguments of an engine with asynchronous steps."""
    values: dict[str, Any] = {
        "model": folder,
        "device": "cpu",
        "worker_method": "fork",
        "async_scheduling": True,
        "block_size": 4,
        "num_blocks": 60,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
    }
    return {**values, **changed}


def check_tokens(llm: LLM, folder: str, params: SamplingParams) -> None:
    """Each prompt is continued as a plain loop does it."""
    given = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]
    outputs = llm.generate(given, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(outputs)
    for output, prompt in zip(outputs, PROMPTS.values(), strict=True):
        assert list(output.token_ids) == plain_tokens(folder, prompt, COUNT, params)


@pytest.mark.parametrize(
    "changed",
    [{}, {"worker_method": "inproc"}, {"tensor_parallel_size": 2}],
    ids=["process", "inproc", "ranks"],
)
def test_an_engine_makes_the_tokens_of_a_plain_loop(folder: str, changed: dict[str, Any]) -> None:
    with LLM(**settings(folder, **changed)) as llm:
        check_tokens(llm, folder, GREEDY)
        check_tokens(llm, folder, SAMPLED)
        assert llm.info()["async_scheduling"] is True


def test_a_stream_that_is_closed_ends_its_request_and_the_others_go_on(folder: str) -> None:
    with LLM(**settings(folder)) as llm:
        stream = llm.generate_stream({"prompt_token_ids": PROMPTS["own-8"]}, ENDLESS)
        assert next(stream).token_ids
        stream.close()  # type: ignore[attr-defined]
        check_tokens(llm, folder, GREEDY)
        metrics = llm.metrics()
        assert metrics["running_requests"] == metrics["waiting_requests"] == 0
        assert metrics["free_blocks"] == 59


def test_a_core_that_is_killed_in_a_step_is_reported_and_leaves_nothing(folder: str) -> None:
    with LLM(**settings(folder, core_factory=functools.partial(pausing_core, 0))) as llm:
        pid = llm.info()["core_pid"]
        stream = llm.generate_stream({"prompt_token_ids": PROMPTS["own-8"]}, ENDLESS)
        assert next(stream).token_ids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            list(stream)
        assert not is_running(pid)


def test_an_engine_that_is_shut_down_in_a_step_ends_at_once(folder: str) -> None:
    llm = LLM(**settings(folder))
    stream = llm.generate_stream({"prompt_token_ids": PROMPTS["own-8"]}, ENDLESS)
    next(stream)
    pid = llm.info()["core_pid"]
    llm.shutdown()
    assert not is_running(pid)
    with pytest.raises(EngineDeadError, match="was shut down"):
        list(stream)


def test_speculation_beside_it_is_refused_by_name() -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(ConfigError) as caught:
        EngineConfig(async_scheduling=True, speculative_config=speculation)
    assert "async_scheduling=True and speculative_config do not go together" in str(caught.value)
    assert "Leave one of the two out" in str(caught.value)
    EngineConfig(async_scheduling=False, speculative_config=speculation)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_another_value_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=rf"async_scheduling={value!r} must be True or False"):
        EngineConfig.of(async_scheduling=value)
