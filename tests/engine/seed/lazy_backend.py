"""The same backend, repaired: it asks when it has to know, in the process that uses the GPU."""

from __future__ import annotations

import dataclasses
import functools

import torch

from sample_engine.attention import registry
from sample_engine.attention.reference import ReferenceBackend
from sample_engine.config import EngineConfig
from sample_engine.engine_core import EngineCore


class LazyBackend(ReferenceBackend):
    """Asks which GPU there is when it is asked itself."""

    name = "probing"

    @staticmethod
    @functools.cache
    def full_graphs() -> bool:
        """Whether the GPU is a Hopper."""
        return bool(torch.cuda.get_device_capability()[0] == 9)


def make_core(config: EngineConfig) -> EngineCore:
    """Make an engine core that uses this backend; runs in the core's process."""
    registry._BACKENDS = {**registry._BACKENDS, "probing": (__name__, "LazyBackend")}
    return EngineCore(dataclasses.replace(config, attention_backend="probing"))
