"""The mechanism of the bug report, in an attention backend: a question in a class body."""

from __future__ import annotations

import dataclasses

import torch

from sample_engine.attention import registry
from sample_engine.attention.reference import ReferenceBackend
from sample_engine.config import EngineConfig
from sample_engine.engine_core import EngineCore


class ProbingBackend(ReferenceBackend):
    """Asks which GPU there is while its class is made."""

    name = "probing"
    full_graphs = torch.cuda.get_device_capability()[0] == 9


def make_core(config: EngineConfig) -> EngineCore:
    """Make an engine core that uses this backend; runs in the core's process."""
    registry._BACKENDS = {**registry._BACKENDS, "probing": (__name__, "ProbingBackend")}
    return EngineCore(dataclasses.replace(config, attention_backend="probing"))
