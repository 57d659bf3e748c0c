"""The memory of the KV cache: how many blocks there is room for, and the tensors themselves."""

from __future__ import annotations

import contextlib
import math

import torch

from sample_engine.attention.interface import AttentionSpec, LayerCache
from sample_engine.attention.kernels import fp8_cache
from sample_engine.errors import ConfigError

__all__ = ["allocate_caches", "bytes_per_block", "num_blocks_on_cpu", "num_blocks_on_gpu"]

_MOST_BYTES_ON_CPU = 1 << 30


def bytes_per_block(spec: AttentionSpec, num_layers: int) -> int:
    """What a block of all layers takes: keys and values."""
    shape = (spec.block_size, spec.num_kv_heads, spec.head_dim)
    if spec.fp8_cache:
        return 2 * num_layers * fp8_cache.bytes_of_block(*shape)
    return 2 * num_layers * math.prod(shape) * int(spec.dtype.itemsize)


def num_blocks_on_cpu(
    spec: AttentionSpec,
    num_layers: int,
    max_model_len: int,
    max_num_seqs: int,
    more_bytes: int = 0,
) -> int:
    """Blocks for so many requests of full length, up to 1 GiB, and the null block.

    ``more_bytes``: what a block takes besides, in a speculator's cache.
    """
    wanted = max_num_seqs * -(-max_model_len // spec.block_size)
    size = bytes_per_block(spec, num_layers) + more_bytes
    return 1 + max(1, min(wanted, _MOST_BYTES_ON_CPU // size))


def num_blocks_on_gpu(
    spec: AttentionSpec,
    num_layers: int,
    peak_bytes: int,
    utilization: float,
    more_bytes: int = 0,
) -> int:
    """Blocks that fit into a part of what is free now, less what a step needs at its peak.

    ``more_bytes``: what a block takes besides, in a speculator's cache. Raises
    :class:`ConfigError` where there is no room for any.
    """
    free, total = torch.cuda.mem_get_info(spec.device)
    size = bytes_per_block(spec, num_layers) + more_bytes
    count = (int(free * utilization) - peak_bytes) // size
    if count < 2:
        raise ConfigError(
            f"No memory is left for the KV cache: of {total / 2**30:.1f} GiB on {spec.device} "
            f"{free / 2**30:.1f} are free beside the model; gpu_memory_utilization={utilization} "
            f"of them has to hold {peak_bytes / 2**30:.1f} GiB for a step and blocks of "
            f"{size / 2**20:.2f} MiB. Raise it, or lower max_num_batched_tokens."
        )
    return count


def allocate_caches(spec: AttentionSpec, num_layers: int, num_blocks: int) -> list[LayerCache]:
    """Caches of all layers, filled with zeros: unwritten slots must not hold NaN.

    Raises :class:`ConfigError` where the device has no room for them.
    """
    needed = num_blocks * bytes_per_block(spec, num_layers)
    free = _free_on_cpu() if spec.device.type == "cpu" else None
    if free is not None and needed > free:  # the system would promise it, and kill who uses it
        raise ConfigError(_no_room(spec, num_blocks, needed, free))
    caches = []
    try:
        for _ in range(num_layers):
            caches.append(_cache_of_layer(spec, num_blocks))
    except torch.cuda.OutOfMemoryError:
        free = torch.cuda.mem_get_info(spec.device)[0]
        raise ConfigError(_no_room(spec, num_blocks, needed, free)) from None
    return caches


def _cache_of_layer(spec: AttentionSpec, num_blocks: int) -> LayerCache:
    shape = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
    if spec.fp8_cache:
        return LayerCache(*(fp8_cache.allocate(*shape, spec.device) for _ in range(2)))
    key, value = torch.zeros((2, *shape), dtype=spec.dtype, device=spec.device)
    return LayerCache(key, value)


def _no_room(spec: AttentionSpec, num_blocks: int, needed: int, free: int) -> str:
    return (
        f"num_blocks={num_blocks} with block_size={spec.block_size} is too large: keys and values "
        f"take {needed / 2**30:.1f} GiB, and on {spec.device} {free / 2**30:.1f} GiB are free. "
        "Lower num_blocks, or leave it None."
    )


def _free_on_cpu() -> int | None:
    """Bytes that the system can give without swapping; None: it does not say."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, amount = line.partition(":")
            if name == "MemAvailable":
                return int(amount.split()[0]) << 10
    return None
