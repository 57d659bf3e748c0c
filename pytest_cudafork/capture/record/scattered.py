"""Operators that put values at given places of a tensor: they write it and read nothing of it.

Their schemas say that they change it in place, as those of operators do that read what was there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

UNKNOWN = -1
"""How many elements are written depends on values, such as those of a mask."""

_BY_INDICES = ("index_put_", "_index_put_impl_")
_BY_VALUES = ("index_fill_", "masked_fill_", "masked_scatter_", "put_")
_ADDS = ("accumulate", "reduce")
_PLACES = {
    **dict.fromkeys(("index_copy", "index_add", "index_fill", "index_reduce"), 2),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), 2),
    **dict.fromkeys(("index_put", "_index_put_impl", "put"), 1),
}
"""Which argument says where an operator writes."""


def elements_put(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return how many elements of its first argument an operator overwrites, at most.

    Args:
        name: The operator, without namespace and overload.
        args: What it was given by position.
        kwargs: What it was given by name.

    Returns:
        Their number, or UNKNOWN. None: it is no such operator, or adds to what is there.

    """
    if any(kwargs.get(each) for each in _ADDS):
        return None
    if name in _BY_INDICES:
        return None if len(args) > 3 and args[3] else _indexed(args[0], args[1])
    if name in _BY_VALUES:
        return None if name == "put_" and len(args) > 3 and args[3] else UNKNOWN
    if name == "index_copy_" and len(args) > 3:
        return int(args[3].numel())
    if name == "scatter_" and len(args) == 4:  # the fifth is the way to reduce
        return int(args[2].numel())
    return None


def places_among(name: str, args: Sequence[Any]) -> list[Tensor]:
    """Return the arguments of an operator whose values say where it writes."""
    at = _PLACES.get(name.removesuffix("_"))
    if at is None or at >= len(args):
        return []
    given = args[at] if isinstance(args[at], (list, tuple)) else [args[at]]
    return [each for each in given if isinstance(each, Tensor)]


def _indexed(tensor: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Return how many elements ``tensor[indices] = ...`` writes, each place counted as new."""
    shapes = []
    rest = list(tensor.shape)
    for dimension, index in reversed(list(enumerate(indices))):
        if index is None:
            continue
        if index.dtype in (torch.bool, torch.uint8):
            return UNKNOWN
        shapes.append(index.shape)
        del rest[dimension]
    return int(math.prod(torch.broadcast_shapes(*shapes)) * math.prod(rest))
