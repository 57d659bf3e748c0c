"""What can be seen to be wrong before an engine core is started: the model's shape, the device.

It imports no torch and initializes no CUDA, so that a front end may ask. Some things only the core
can see: its torch, the backends, the weights, the memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sample_engine.config import CUDAGraphMode, EngineConfig
from sample_engine.device import platform
from sample_engine.errors import ConfigError
from sample_engine.model.config import LlamaConfig
from sample_engine.model.config_file import read_config
from sample_engine.model.shards import why_not_cut

__all__ = [
    "check_before_start",
    "check_graph_execution",
    "check_graphs_without_gpu",
    "gpu_index",
    "longest_text",
    "no_graphs",
    "why_no_gpu",
]

_EXECUTION = ("new_pool", "session", "capture", "synchronize")
"""What an object must do that captures and replays: ``graphs.execution.GraphExecution``."""


def check_before_start(config: EngineConfig) -> None:
    """Raise :class:`ConfigError` for a model, a length or a device that cannot be had."""
    _check_working_directory(config.device)
    model = read_config(config.model)
    longest_text(config, model)
    if config.tensor_parallel_size > 1:
        _check_ranks(config, model)
    if config.device.startswith("cuda"):
        gpu_index(config.device, platform.gpu_count(), why_no_gpu)


def _check_working_directory(device: str) -> None:
    """Refuse to compute on a CPU where the working directory is gone.

    oneMKL, with which torch computes there, does not find its own library then, and ends the
    process. Once it has been loaded, the directory may go.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        if not device.startswith("cuda"):
            raise ConfigError(
                "The working directory was deleted, and torch cannot compute on a CPU there: start "
                "in a folder that is there, or change to one (os.chdir)."
            ) from None


def no_graphs(device: str) -> str:
    """Return why there are no graphs on a device, and how there can be."""
    return (
        f"cudagraph_mode asks for CUDA graphs, but the model runs on {device!r}: leave it 'NONE', "
        "use a GPU, or give LLM an object that captures and replays there, as graph_execution= "
        f"(it has the methods {', '.join(_EXECUTION)}; one is in "
        "docs/examples/engine/software_graph.py)."
    )


def check_graphs_without_gpu(config: EngineConfig) -> None:
    """Raise :class:`ConfigError` where a CPU is to have CUDA graphs."""
    if config.cudagraph_mode is not CUDAGraphMode.NONE:
        raise ConfigError(no_graphs("cpu"))


def check_graph_execution(config: EngineConfig, execution: object) -> None:
    """Raise :class:`ConfigError` for an object that cannot capture, or is not asked to."""
    missing = [name for name in _EXECUTION if not callable(getattr(execution, name, None))]
    if missing:
        raise ConfigError(
            f"graph_execution={execution!r} cannot capture and replay: it lacks the methods "
            f"{', '.join(missing)} of sample_engine.graphs.execution.GraphExecution."
        )
    if config.cudagraph_mode is CUDAGraphMode.NONE:
        raise ConfigError(
            "graph_execution is given, but cudagraph_mode='NONE' captures nothing: choose "
            "'PIECEWISE', 'FULL' or 'FULL_AND_PIECEWISE', or leave graph_execution out."
        )


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
    longest = model.longest_text
    wished = config.max_model_len
    if wished is not None and wished > longest:
        raise ConfigError(
            f"max_model_len={wished} is more than the model was trained for "
            f"({longest}, by its max_position_embeddings and its scaling of RoPE): ask for at most "
            "that."
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
