"""The mechanism of the bug report, in an attention backend: a question in a class body."""

import dataclasses

import torch

from sample_engine.attention import registry
from sample_engine.attention.reference import ReferenceBackend
from sample_engine.engine_core import EngineCore


class ProbingBackend(ReferenceBackend):
    name = "probing"
    full_graphs = torch.cuda.get_device_capability()[0] == 9


def make_core(config):
    """Make an engine core that uses this backend; runs in the core's process."""
    registry._BACKENDS = {**registry._BACKENDS, "probing": (__name__, "ProbingBackend")}
    return EngineCore(dataclasses.replace(config, attention_backend="probing"))
