"""The attention backends by name, in order of preference, and the choice of one.

Each is imported only when it is asked about. A new backend is a subclass of
``interface.AttentionBackend`` and a line in ``_BACKENDS``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from sample_engine.attention.interface import AttentionBackend, AttentionSpec
from sample_engine.errors import BackendUnavailableError

__all__ = ["AUTO", "backend_class", "capturable_backends", "choose"]

AUTO = "auto"

_BACKENDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "flash": ("sample_engine.attention.flash", "FlashBackend"),
        "triton": ("sample_engine.attention.triton_backend", "TritonBackend"),
        "lazy_plan": ("sample_engine.attention.lazy_plan", "LazyPlanBackend"),
        "sdpa": ("sample_engine.attention.sdpa", "SdpaBackend"),
        "reference": ("sample_engine.attention.reference", "ReferenceBackend"),
    }
)
# ``flash`` gathers the pages of a step before it calls the library, and cannot be part of a whole
# graph: our own kernels make a step in half the time. ``lazy_plan`` and ``sdpa`` are for those who
# ask for them: on a CPU the oracle is what others are compared with.
_AUTO_ON_GPU: tuple[str, ...] = ("triton", "flash", "reference")
_AUTO_ON_CPU: tuple[str, ...] = ("reference",)


def capturable_backends() -> list[str]:
    """The names of the backends whose attention a FULL graph can hold; imports all."""
    return [name for name in _BACKENDS if backend_class(name).why_no_full_graph is None]


def backend_class(name: str) -> type[AttentionBackend]:
    """The class of a backend that is known by this name; imports it."""
    module, attribute = _BACKENDS[name]
    found: type[AttentionBackend] = getattr(importlib.import_module(module), attribute)
    return found


def choose(name: str, spec: AttentionSpec) -> AttentionBackend:
    """Make the backend of this name, or with ``auto`` the best that can run here.

    Raises :class:`BackendUnavailableError` if it is unknown or cannot run ``spec``; the message
    names those that can, and says of the others why not.
    """
    if name == AUTO:
        return _best(spec)
    if name not in _BACKENDS:
        raise BackendUnavailableError(
            f"attention_backend={name!r} is not known. {_overview(spec)} Or use {AUTO!r}."
        )
    reason = _why_not(name, spec)
    if reason is not None:
        others = _overview(spec, leave_out=name)
        raise BackendUnavailableError(
            f"attention_backend={name!r} cannot run here: {reason}. {others} Or use {AUTO!r}."
        )
    return backend_class(name)(spec)


def _best(spec: AttentionSpec) -> AttentionBackend:
    for name in _AUTO_ON_GPU if spec.device.type == "cuda" else _AUTO_ON_CPU:
        if _why_not(name, spec) is None:
            return backend_class(name)(spec)
    raise BackendUnavailableError(f"No attention backend can run here. {_overview(spec)}")


def _why_not(name: str, spec: AttentionSpec) -> str | None:
    try:
        found = backend_class(name)
        if spec.window is not None and not found.has_windows:
            return f"it has no sliding window, and the model has one of {spec.window} tokens"
        if spec.fp8_cache and not found.reads_fp8:
            return "it cannot read an FP8 KV cache, and kv_cache_dtype asks for one"
        return found.why_not(spec)
    except ImportError as error:
        return f"importing it failed: {type(error).__name__}: {error}"


def _overview(spec: AttentionSpec, leave_out: str | None = None) -> str:
    reasons = {name: _why_not(name, spec) for name in _BACKENDS if name != leave_out}
    there = [name for name, reason in reasons.items() if reason is None]
    missing = [f"{name} ({reason})" for name, reason in reasons.items() if reason is not None]
    text = f"There are here: {', '.join(there) or 'none'}."
    return f"{text} Not here: {'; '.join(missing)}." if missing else text
