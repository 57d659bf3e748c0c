"""The speculators by name. Each is imported only when one is to be made.

A new one is a subclass of ``interface.Speculator``, a module with a function ``make``, a line in
``_SPECULATORS`` and its name in ``config.SPECULATIVE_METHODS``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from sample_engine.attention.interface import AttentionSpec
    from sample_engine.config import EngineConfig, SpeculativeConfig
    from sample_engine.model.llama import Llama
    from sample_engine.speculate.interface import Speculator

__all__ = ["SpeculatorParts", "make_speculator"]

_SPECULATORS: Mapping[str, str] = MappingProxyType(
    {
        "eagle": "sample_engine.speculate.eagle.speculator",
        "ngram": "sample_engine.speculate.ngram",
    }
)


@dataclasses.dataclass(frozen=True)
class SpeculatorParts:
    """What of an engine a speculator may be made of."""

    config: EngineConfig
    speculative: SpeculativeConfig
    model: Llama
    spec: AttentionSpec
    device: torch.device
    max_model_len: int


def make_speculator(parts: SpeculatorParts) -> Speculator:
    """Make the speculator that the configuration names: ``make`` of its module does.

    Raises :class:`ConfigError` or :class:`WeightsError` where it cannot be had for this model.
    """
    module = importlib.import_module(_SPECULATORS[parts.speculative.method])
    speculator: Speculator = module.make(parts)
    return speculator
