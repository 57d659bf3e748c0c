"""Owns which attention backends a FULL graph may hold. It imports none of them.

A backend qualifies if its forward pass reads all lengths on the device, has no shape that depends
on them, and does not need more of the host than the longest text and the most queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sample_engine.config import CUDAGraphMode
from sample_engine.errors import ConfigError

__all__ = ["allowed_mode", "why_not_full"]

_WHY_NOT: Mapping[str, str | None] = MappingProxyType(
    {
        "reference": None,
        "triton": None,
        "lazy_plan": None,
        "flash": "its libraries settle on the host, by each step's lengths, what they launch",
    }
)


def why_not_full(backend: str) -> str | None:
    """Why attention of the backend of this name cannot be part of a graph; None: it can."""
    return _WHY_NOT.get(backend, "nobody has said that it can be captured (graphs/support.py)")


def allowed_mode(mode: CUDAGraphMode, backend: str) -> CUDAGraphMode:
    """What of the wished graphs the backend allows: FULL_AND_PIECEWISE may become PIECEWISE.

    Raises :class:`ConfigError` if FULL graphs alone are wished and it allows none.
    """
    reason = why_not_full(backend)
    if reason is None or "FULL" not in mode.value:
        return mode
    if "PIECEWISE" in mode.value:
        return CUDAGraphMode.PIECEWISE
    possible = ", ".join(name for name, words in _WHY_NOT.items() if words is None)
    raise ConfigError(
        f"cudagraph_mode={mode.value!r} with attention_backend={backend!r}: {reason}. Use "
        f"cudagraph_mode='PIECEWISE', or a backend that can be captured ({possible})."
    )
