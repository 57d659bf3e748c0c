"""What an engine is asked to be: one frozen value. It checks words and ranges, no machine."""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Mapping
from typing import Any

from sample_engine.errors import ConfigError
from sample_engine.speculate.config import SpeculativeConfig

__all__ = ["CUDAGraphMode", "EngineConfig", "WorkerMethod"]


class WorkerMethod(str, enum.Enum):
    """How the engine core runs. ``AUTO`` asks the driver, see ``process.start_method``."""

    AUTO = "auto"
    INPROC = "inproc"
    FORK = "fork"
    SPAWN = "spawn"
    FORKSERVER = "forkserver"


class CUDAGraphMode(str, enum.Enum):
    """What is captured: nothing, the pieces between attentions, or whole forward passes."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine's settings, under vLLM's names. Frozen: derived values are worked out elsewhere.

    ``model`` is ``"tiny"`` (the one that comes with the engine), ``"llama-3-8b"`` (a shape, for
    ``load_format="dummy"``) or a folder with ``config.json`` and ``model.safetensors``.
    ``num_blocks`` is the size of the KV cache in blocks of ``block_size`` tokens, the null block
    included; ``None``: what ``gpu_memory_utilization`` of the free device memory holds, on a CPU
    what ``max_num_seqs`` requests of full length need, up to 1 GiB. ``speculative_config`` is what
    :class:`~sample_engine.speculate.config.SpeculativeConfig` is made of.

    Raises :class:`ConfigError` for a value out of range.
    """

    model: str = "tiny"
    load_format: str = "auto"  # "auto": the weights of the model; "dummy": random ones
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1"
    dtype: str = "auto"  # "auto": float32 on a CPU, bfloat16 on a GPU
    max_model_len: int | None = None  # None: what the model was trained for
    block_size: int = 16
    num_blocks: int | None = None
    gpu_memory_utilization: float = 0.8
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    attention_backend: str = "auto"
    worker_method: WorkerMethod = WorkerMethod.AUTO
    speculative_config: Mapping[str, Any] | None = None
    cudagraph_mode: CUDAGraphMode = CUDAGraphMode.NONE
    tensor_parallel_size: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is out of range, all of it in one message."""
        wrong = list(_wrong(self))
        if wrong:
            raise ConfigError("\n".join(wrong))

    @property
    def speculative(self) -> SpeculativeConfig | None:
        """How to speculate; None: not at all."""
        if self.speculative_config is None:
            return None
        return SpeculativeConfig.of(self.speculative_config, warn=False)

    @classmethod
    def of(cls, **settings: Any) -> EngineConfig:
        """The configuration of keyword arguments; enumerations may be given as text.

        Raises :class:`ConfigError` for a wrong value and :class:`TypeError` for an unknown name,
        with the name that is closest to it.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                raise TypeError(_unknown(name, known))
        return cls(**{name: _parsed(name, value) for name, value in settings.items()})


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"EngineConfig has no setting {name!r}.{hint} It has: {', '.join(sorted(known))}."


def _parsed(name: str, value: Any) -> Any:
    kinds: dict[str, type[enum.Enum]] = {
        "worker_method": WorkerMethod,
        "cudagraph_mode": CUDAGraphMode,
    }
    kind = kinds.get(name)
    if kind is None or isinstance(value, kind):
        return value
    try:
        return kind(value)
    except ValueError:
        values = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{name}={value!r} is not one of {values}.") from None


_POSITIVE = (
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
)


def _wrong(config: EngineConfig) -> list[str]:
    """What is wrong with the values, a line each."""
    found = []
    for name in _POSITIVE:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            found.append(f"{name}={value!r} must be a whole number of at least 1.")
    for name, least in (("max_model_len", 1), ("num_blocks", 2)):
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or value < least):
            found.append(f"{name}={value!r} must be a whole number of at least {least}, or None.")
    if config.block_size & (config.block_size - 1):
        found.append(f"block_size={config.block_size!r} must be a power of two.")
    if not 0.0 < config.gpu_memory_utilization <= 1.0:
        found.append(
            f"gpu_memory_utilization={config.gpu_memory_utilization!r} must lie above 0 and at "
            "most at 1."
        )
    if config.dtype not in ("auto", "float32", "float16", "bfloat16"):
        found.append(f"dtype={config.dtype!r} is not one of auto, float32, float16, bfloat16.")
    if config.load_format not in ("auto", "dummy"):
        found.append(f"load_format={config.load_format!r} is not one of auto, dummy.")
    if config.tensor_parallel_size != 1:
        found.append(
            f"tensor_parallel_size={config.tensor_parallel_size!r}: this engine runs a model on "
            "one device; only 1 is supported."
        )
    return found + _wrong_speculation(config)


def _wrong_speculation(config: EngineConfig) -> list[str]:
    if config.speculative_config is None:
        return []
    try:
        drafts = SpeculativeConfig.of(config.speculative_config).num_speculative_tokens
    except ConfigError as error:
        return [str(error)]
    if not isinstance(config.max_num_batched_tokens, int) or (
        drafts < config.max_num_batched_tokens
    ):
        return []
    return [
        f"max_num_batched_tokens={config.max_num_batched_tokens!r} holds no token with its "
        f"num_speculative_tokens={drafts} drafts, which are verified in one step: raise it to at "
        f"least {drafts + 1}."
    ]
