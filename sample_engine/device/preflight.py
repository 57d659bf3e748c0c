"""What can be seen to be wrong before an engine core is started: the model's shape, the device.

It imports no torch and initializes no CUDA, so that a front end may ask. Some things only the core
can see: its torch, the backends, the weights, the memory.
"""

from __future__ import annotations

from collections.abc import Callable

from sample_engine.config import EngineConfig
from sample_engine.device import platform
from sample_engine.errors import ConfigError
from sample_engine.model.config import LlamaConfig
from sample_engine.model.config_file import read_config
from sample_engine.model.shards import why_not_cut

__all__ = ["check_before_start", "gpu_index", "longest_text", "why_no_gpu"]


def check_before_start(config: EngineConfig) -> None:
    """Raise :class:`ConfigError` for a model, a length or a device that cannot be had."""
    model = read_config(config.model)
    longest_text(config, model)
    if config.tensor_parallel_size > 1:
        _check_ranks(config, model)
    if config.device.startswith("cuda"):
        gpu_index(config.device, platform.gpu_count(), why_no_gpu)


def _check_ranks(config: EngineConfig, model: LlamaConfig) -> None:
    """Refuse more ranks than the model can be cut for, or than there are GPUs."""
    size = config.tensor_parallel_size
    why = why_not_cut(model, size)
    if why:
        raise ConfigError(
            f"tensor_parallel_size={size} does not go with model={config.model!r}: "
            f"{'; '.join(why)}."
        )
    if config.device == "cpu":
        return
    count = platform.gpu_count()
    if count < size and (count or config.device != "auto"):
        see = why_no_gpu() if not count else f"this process sees {'one' if count == 1 else count}"
        raise ConfigError(
            f"tensor_parallel_size={size} needs {size} GPUs, and {see}. Lower it, show the process "
            "more (CUDA_VISIBLE_DEVICES), or use device='cpu'."
        )


def longest_text(config: EngineConfig, model: LlamaConfig) -> int:
    """Return how many tokens a text may have.

    Raises :class:`ConfigError` if more are asked for than the model takes.
    """
    longest = model.max_position_embeddings
    wished = config.max_model_len
    if wished is not None and wished > longest:
        raise ConfigError(
            f"max_model_len={wished} is more than the model was trained for "
            f"(max_position_embeddings={longest}): ask for at most that."
        )
    return wished or longest


def gpu_index(device: str, count: int, why_none: Callable[[], str]) -> int:
    """The number of the GPU that ``device`` names, where ``count`` can be used.

    Raises :class:`ConfigError` if there is no such GPU; ``why_none`` says why there is none at all.
    """
    index = int(device.partition(":")[2] or 0)
    if index < count:
        return index
    if count:
        why = "this process sees one GPU" if count == 1 else f"this process sees {count} GPUs"
    else:
        why = why_none()
    raise ConfigError(f"device={device!r} is asked for, but {why}. Or use device='cpu'.")


def why_no_gpu() -> str:
    """Say why this process sees no GPU."""
    return f"no GPU can be used: {platform.why_no_gpu()}"
