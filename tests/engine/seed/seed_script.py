"""The script of the bug report, call for call, on an engine whose guard asks torch.

What the report shows: something has initialized the driver without torch's flag, the guard asks
torch and forks, and the core imports a backend whose class body asks for the GPU. ``backend`` and
``guard`` are what the three proposed repairs change.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any
from unittest import mock

import torch

from sample_engine import LLM, SamplingParams
from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.process import client
from sample_engine.process.start_method import StartDecision, choose_start_method

SPECULATIVE = {
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "ngram_prompt_lookup_max": 5,
        "ngram_prompt_lookup_min": 2,
    },
    "eagle": {"method": "eagle", "num_speculative_tokens": 3},
}


def touch_quietly() -> None:
    """Ask what many libraries ask when they are imported; torch's flag stays as it is."""
    torch.cuda.is_available()


def guard_that_asks_torch(config: EngineConfig) -> StartDecision:
    """Spawn if torch says that CUDA is initialized, else fork."""
    unsafe = torch.cuda.is_initialized()
    method = WorkerMethod.SPAWN if unsafe else WorkerMethod.FORK
    return StartDecision(method, ("torch was asked",), config.worker_method)


def make_core(module: str, config: EngineConfig) -> Any:
    """Import the backend in the process of the core, as the report's engine does."""
    return importlib.import_module(module).make_core(config)


def main(
    backend: str, speculator: str, device: str = "cpu", asks_torch: bool = True
) -> dict[str, Any]:
    """Generate as the report does; return what the engine tells of itself."""
    touch_quietly()
    guard = guard_that_asks_torch if asks_torch else choose_start_method
    with mock.patch.object(client, "choose_start_method", guard), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*ngram_prompt_lookup", DeprecationWarning)
        llm = LLM(
            model="tiny",
            speculative_config=SPECULATIVE[speculator],
            tensor_parallel_size=1,
            core_factory=functools.partial(make_core, backend),
            device=device,
            num_blocks=60,
            max_num_batched_tokens=256,
        )
    with llm:
        (output,) = llm.generate(["Once upon a time"], SamplingParams(max_tokens=20))
        assert len(output.token_ids) == 20 or output.finish_reason is not None
        return llm.info()
