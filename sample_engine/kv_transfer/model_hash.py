"""A hash of a model: of its shape and of every weight, as they are in this process.

Equal weights have equal hashes on every host and device, whatever file they came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["model_hash"]

_AT_ONCE = 1 << 24  # numbers of a weight that are looked at together
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, and as a signed number


def model_hash(modules: Iterable[nn.Module], more: Iterable[object] = ()) -> str:
    """The hash of modules with their parameters, and of whatever else makes a difference.

    ``more``: values whose ``repr`` says all of them, as shapes and names.
    """
    digest = hashlib.blake2b(digest_size=16)
    for value in more:
        digest.update(f"{value!r}\n".encode())
    with torch.inference_mode():
        for module in modules:
            for name, weight in module.named_parameters():
                described = f"{name} {tuple(weight.shape)} {weight.dtype} {_sum(weight)}\n"
                digest.update(described.encode())
    return digest.hexdigest()


def _sum(parameter: Tensor) -> int:
    """A sum over the bits of all numbers, each weighted by its place: whole numbers, so exact.

    It is computed where the parameter is, and does not depend on the order of the addition.
    """
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = parameter.detach().contiguous().view(kinds[parameter.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), _AT_ONCE):
        part = bits[start : start + _AT_ONCE].to(torch.int64)
        places = torch.arange(start, start + len(part), device=bits.device)
        total += ((part + places) * ((places * 2 + 1) * _FACTOR)).sum()
    return int(total)
