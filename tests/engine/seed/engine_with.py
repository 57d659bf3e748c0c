"""Makes an engine whose core uses one of the two backends, by a start method that is given."""

import importlib

from sample_engine import SamplingParams
from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.process.client import make_client
from sample_engine.process.start_method import StartDecision, choose_start_method

CONFIG = EngineConfig(device="cpu", num_blocks=40, max_num_batched_tokens=64)


def generate(backend, method=None):
    """Generate four tokens; ``method=None`` leaves the start method to the engine."""
    factory = importlib.import_module(backend).make_core  # as reading speculative_config did
    decision = None
    if method is not None:
        method = WorkerMethod(method)
        decision = StartDecision(method=method, reasons=(), requested=method, forced=False)
    client = make_client(CONFIG, factory, decision or choose_start_method(CONFIG))
    try:
        client.add_request("one", list(b"import os"), SamplingParams(max_tokens=4))
        tokens = []
        while len(tokens) < 4:
            for output in client.get_outputs(timeout=60):
                assert output.error is None
                tokens += output.new_token_ids
        return tokens, client.info
    finally:
        client.shutdown()
