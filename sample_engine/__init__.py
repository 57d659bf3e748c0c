"""A small LLM engine: continuous batching, paged KV memory, attention backends, a core process.

The shortest way through a step, along the modules at the top:

- ``llm``: prompts in, text out. It talks to the core by way of ``process.client``.
- ``engine_core``: ``EngineCore.step`` is schedule, run, postprocess.
- ``scheduler``: ``Scheduler.schedule`` picks which tokens of which requests are computed.
- ``model_runner``: ``ModelRunner.run`` brings them to the device (``batch.input_batch``) and runs
  the model on them (``model.llama``), eagerly or by a captured graph (``graphs``). A backend of
  ``attention`` reads and writes the pages of the ``kv_cache``.
- ``sampling``: ``sample`` chooses the next tokens. With a speculator ``speculate.step`` verifies
  its drafts instead, and asks it for the next ones.
- With ``tensor_parallel_size`` above 1 each rank is a process that goes this way in lock-step with
  the others (``process.lock_step``); what they compute together is in ``parallel``.
- ``Scheduler.postprocess`` adds the tokens to their requests and says what is new of each.

The names below are imported when they are first asked for: ``import sample_engine`` imports neither
torch nor anything else that is heavy, and touches no GPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sample_engine.batch.outputs import CompletionOutput, Logprob, RequestOutput
    from sample_engine.batch.request import FinishReason
    from sample_engine.batch.sampling_params import SamplingParams
    from sample_engine.config import CUDAGraphMode, EngineConfig, WorkerMethod
    from sample_engine.errors import (
        BackendUnavailableError,
        ConfigError,
        EngineDeadError,
        EngineError,
        GraphCaptureError,
        KVTransferError,
        NotFiniteError,
        PromptError,
        RankLostError,
        RemoteError,
        WeightsError,
    )
    from sample_engine.kv_transfer.config import KVTransferConfig
    from sample_engine.llm import LLM
    from sample_engine.process.messages import MessageError

__all__ = [
    "LLM",
    "BackendUnavailableError",
    "CUDAGraphMode",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "FinishReason",
    "GraphCaptureError",
    "KVTransferConfig",
    "KVTransferError",
    "Logprob",
    "MessageError",
    "NotFiniteError",
    "PromptError",
    "RankLostError",
    "RemoteError",
    "RequestOutput",
    "SamplingParams",
    "WeightsError",
    "WorkerMethod",
]

_PLACES = {
    "LLM": "llm",
    "CUDAGraphMode": "config",
    "EngineConfig": "config",
    "WorkerMethod": "config",
    "CompletionOutput": "batch.outputs",
    "FinishReason": "batch.request",
    "KVTransferConfig": "kv_transfer.config",
    "Logprob": "batch.outputs",
    "MessageError": "process.messages",
    "RequestOutput": "batch.outputs",
    "SamplingParams": "batch.sampling_params",
}


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_PLACES.get(name, 'errors')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
