"""What an engine is asked to be: one frozen value, :class:`EngineConfig`, under vLLM's names.

Words and ranges are checked here, with all that is wrong in one message. What the machine and the
model allow is checked later, in ``device.preflight`` and ``device.resolve``.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sample_engine.errors import ConfigError
from sample_engine.kv_transfer.config import KVTransferConfig
from sample_engine.speculative_config import (
    REJECTION_METHODS,
    SPECULATIVE_METHODS,
    SpeculativeConfig,
)

__all__ = [
    "REJECTION_METHODS",
    "SPECULATIVE_METHODS",
    "CUDAGraphMode",
    "EngineConfig",
    "SpeculativeConfig",
    "WorkerMethod",
]


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
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"  # whole passes of decodes, pieces for all else


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine's settings, under vLLM's names. Frozen: derived values are worked out elsewhere.

    ``model`` is ``"tiny"`` (the one that comes with the engine), ``"llama-3-8b"`` (a shape, for
    ``load_format="dummy"``) or a folder with ``config.json`` and ``model.safetensors``.
    ``num_blocks`` is the size of the KV cache in blocks of ``block_size`` tokens, the null block
    included; ``None``: what ``gpu_memory_utilization`` of the free device memory holds, on a CPU
    what ``max_num_seqs`` requests of full length need, up to 1 GiB. With ``async_scheduling`` a
    step is scheduled and launched before the tokens of the one before are known.
    ``speculative_config`` is what :class:`SpeculativeConfig` is made of; ``kv_transfer_config`` is
    a :class:`~sample_engine.kv_transfer.config.KVTransferConfig`, or what one is made of.

    Raises :class:`ConfigError` for a value of another type or out of range.
    """

    model: str = "tiny"
    load_format: str = "auto"  # "auto": the weights of the model; "dummy": random ones
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1"
    dtype: str = "auto"  # "auto": float32 on a CPU, bfloat16 on a GPU
    kv_cache_dtype: str = "auto"  # "auto": as dtype; "fp8", "fp8_e4m3": 8 bits and a scale a row
    max_model_len: int | None = None  # None: what the model was trained for
    block_size: int = 16
    num_blocks: int | None = None
    gpu_memory_utilization: float = 0.8
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = False
    attention_backend: str = "auto"
    worker_method: WorkerMethod = WorkerMethod.AUTO
    speculative_config: Mapping[str, Any] | None = None
    kv_transfer_config: KVTransferConfig | Mapping[str, Any] | None = None
    cudagraph_mode: CUDAGraphMode = CUDAGraphMode.NONE
    cudagraph_capture_sizes: tuple[int, ...] | None = None  # tokens, requests; None: 1, 2, 4, ...
    tensor_parallel_size: int = 1  # ranks: processes with a part of the model and a GPU each
    disable_custom_all_reduce: bool = False  # True: NCCL alone sums over ranks
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

    @property
    def kv_transfer(self) -> KVTransferConfig | None:
        """With whom to share KV blocks; None: with nobody."""
        if self.kv_transfer_config is None:
            return None
        return KVTransferConfig.of(self.kv_transfer_config)

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
    return f"There is no setting {name!r}.{hint} There are: {', '.join(sorted(known))}."


_KINDS: Mapping[str, type[enum.Enum]] = MappingProxyType(
    {"worker_method": WorkerMethod, "cudagraph_mode": CUDAGraphMode}
)


def _parsed(name: str, value: Any) -> Any:
    """A value as its type; one that is none of the type's stays as it is, and is refused later."""
    if name == "model" and isinstance(value, os.PathLike):
        return os.fspath(value)
    if name == "cudagraph_capture_sizes" and isinstance(value, list):
        return tuple(value)
    kind = _KINDS.get(name)
    if kind is None or not isinstance(value, str):
        return value
    try:
        return kind(value)
    except ValueError:
        return value


# The least and the most of each. More has no machine memory for, or no number that counts it.
_WHOLE = {
    "block_size": (1, 1 << 16),
    "max_num_seqs": (1, 1 << 16),
    "max_num_batched_tokens": (1, 1 << 24),
    "max_model_len": (1, (1 << 31) - 1),
    "num_blocks": (2, (1 << 31) - 1),
    "tensor_parallel_size": (1, 1 << 10),
    "seed": (-(1 << 63), (1 << 64) - 1),
}
_MAY_BE_NONE = ("max_model_len", "num_blocks")
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


def _wrong(config: EngineConfig) -> list[str]:
    """What is wrong with the values, a line each."""
    found = [*_wrong_types(config), *_wrong_words(config)]
    size = config.block_size
    if _is_whole(size) and size >= 1 and size & (size - 1):
        found.append(f"block_size={size!r} must be a power of two.")
    sizes: Any = config.cudagraph_capture_sizes
    if sizes is not None and not (
        isinstance(sizes, tuple) and sizes and all(type(n) is int and n > 0 for n in sizes)
    ):
        found.append(
            f"cudagraph_capture_sizes={sizes!r} must be a list of whole numbers of at least 1, or "
            "None."
        )
    part: Any = config.gpu_memory_utilization
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0.0 < part <= 1.0:
        found.append(
            f"gpu_memory_utilization={part!r} must be a number that lies above 0 and at most at 1."
        )
    if isinstance(config.device, str) and not _DEVICE.fullmatch(config.device):
        found.append(f"device={config.device!r} is not one of auto, cpu, cuda, cuda:0, cuda:1, ...")
    found += _wrong_ranks(config) + _wrong_speculation(config)
    return found + _wrong_kv_transfer(config)


def _wrong_ranks(config: EngineConfig) -> list[str]:
    """What does not go with several ranks, a line each."""
    size, found = config.tensor_parallel_size, []
    if not _is_whole(size) or size <= 1:
        return []
    if isinstance(config.device, str) and ":" in config.device:
        found.append(
            f"device={config.device!r} is one GPU, and tensor_parallel_size={size} needs {size}: "
            "use device='cuda', and choose GPUs by CUDA_VISIBLE_DEVICES."
        )
    if config.worker_method is WorkerMethod.INPROC:
        found.append(
            f"worker_method='inproc' starts no process, and tensor_parallel_size={size} needs one "
            "for each rank: leave worker_method out, or use 'fork', 'spawn' or 'forkserver'."
        )
    if config.kv_transfer_config is not None:
        found.append(
            f"kv_transfer_config and tensor_parallel_size={size} do not go together: each rank has "
            "a part of every KV block, and only whole ones are shared. Leave one of the two out."
        )
    return found


def _wrong_types(config: EngineConfig) -> list[str]:
    """What is of another type, or a number out of range, a line each."""
    found = []
    for name in ("model", "device", "attention_backend"):
        value = getattr(config, name)
        if not isinstance(value, str):
            found.append(f"{name}={value!r} must be a str.")
    for name in (
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "async_scheduling",
        "disable_custom_all_reduce",
    ):
        value = getattr(config, name)
        if not isinstance(value, bool):
            found.append(f"{name}={value!r} must be True or False.")
    for name, (least, most) in _WHOLE.items():
        value = getattr(config, name)
        if value is None and name in _MAY_BE_NONE:
            continue
        if not _is_whole(value) or not least <= value <= most:
            none = ", or None" if name in _MAY_BE_NONE else ""
            found.append(
                f"{name}={value!r} must be a whole number of at least {least} and at most "
                f"{most}{none}."
            )
    return found


_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: tuple(member.value for member in kind) for name, kind in _KINDS.items()},
        "dtype": ("auto", "float32", "float16", "bfloat16"),
        "kv_cache_dtype": ("auto", "fp8", "fp8_e4m3"),
        "load_format": ("auto", "dummy"),
    }
)


def _wrong_words(config: EngineConfig) -> list[str]:
    """What is none of the words that there are, a line each."""
    found = []
    for name, words in _WORDS.items():
        value = getattr(config, name)
        if isinstance(value, str) and value in words:
            continue
        by_case = {word.lower(): word for word in words}
        close = difflib.get_close_matches(str(value).lower(), by_case, n=1)
        hint = f" Did you mean {by_case[close[0]]!r}?" if close else ""
        found.append(f"{name}={value!r} is not one of {', '.join(map(repr, words))}.{hint}")
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong_speculation(config: EngineConfig) -> list[str]:
    if config.speculative_config is None:
        return []
    try:
        drafts = SpeculativeConfig.of(config.speculative_config).num_speculative_tokens
    except ConfigError as error:
        return [str(error)]
    found = []
    if _is_whole(config.max_num_batched_tokens) and drafts >= config.max_num_batched_tokens:
        found.append(
            f"speculative_config: num_speculative_tokens={drafts} must be less than "
            f"max_num_batched_tokens={config.max_num_batched_tokens!r}, as a token and its drafts "
            "are verified in one step: lower it, or raise that."
        )
    if config.async_scheduling is True:
        found.append(
            "async_scheduling=True and speculative_config do not go together: what the next step "
            "computes depends on how many drafts count, so it cannot be scheduled before that is "
            "known. Leave one of the two out."
        )
    return found


def _wrong_kv_transfer(config: EngineConfig) -> list[str]:
    if config.kv_transfer_config is None:
        return []
    try:
        KVTransferConfig.of(config.kv_transfer_config)
    except ConfigError as error:
        return [str(error)]
    if config.enable_prefix_caching is not False:
        return []
    return [
        "kv_transfer_config needs enable_prefix_caching=True: blocks are known by their prefix."
    ]
