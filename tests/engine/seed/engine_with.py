"""Makes an engine whose core uses one of the two backends, by a start method that is given."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from sample_engine import SamplingParams
from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.process.client import make_client
from sample_engine.process.start_method import StartDecision, choose_start_method

CONFIG = EngineConfig(device="cpu", num_blocks=40, max_num_batched_tokens=64)


def generate(
    backend: str, method: str | None = None, device: str = "cpu"
) -> tuple[list[int], dict[str, Any]]:
    """Generate four tokens; ``method=None`` leaves the start method to the engine."""
    config = dataclasses.replace(CONFIG, device=device)
    factory = importlib.import_module(backend).make_core  # as reading speculative_config did
    decision = None
    if method is not None:
        wanted = WorkerMethod(method)
        decision = StartDecision(method=wanted, reasons=(), requested=wanted)
    client = make_client(config, factory, decision or choose_start_method(config))
    try:
        client.add_request("one", list(b"import os"), SamplingParams(max_tokens=4))
        tokens: list[int] = []
        while len(tokens) < 4:
            for output in client.get_outputs(timeout=60):
                assert output.error is None
                tokens += output.new_token_ids
        return tokens, dict(client.info)
    finally:
        client.shutdown()
