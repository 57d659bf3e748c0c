"""Owns which calls have a result whose shape depends on values, of operators that may have one.

It does not know what is done about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.operators.traits import Traits

__all__ = ["depends_on_values"]

_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
_RANGE = (("min", 2), ("max", 3))


def depends_on_values(
    traits: Traits, args: Any, kwargs: dict[str, Any], on_host: Callable[[Tensor], bool]
) -> bool:
    """Whether this call, of an operator with ``traits.dynamic``, waits for values on a GPU.

    ``on_host`` tells whether the host knows what a tensor holds.
    """
    name = traits.name.split("::", 1)[1]
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("linspace", "logspace"):  # their ends may be tensors
        ends = [*args[:2], *kwargs.values()]
        return any(isinstance(each, Tensor) and not on_host(each) for each in ends)
    if name == "histc":  # without a range it looks for the smallest and the largest value
        low, high = (kwargs.get(n, args[i] if len(args) > i else 0) for n, i in _RANGE)
        return bool(low == high)
    if name not in _INDEXING:
        return True
    if not any(isinstance(each, Tensor) and _is_mask(each) for each in args[1]):
        return False
    if name == "index":
        return True
    # x[mask] = one number is a masked_fill, if the host knows the number and does not add it
    indices = [each for each in args[1] if each is not None]
    value, accumulate = args[2], len(args) > 3 and bool(args[3])
    return accumulate or len(indices) > 1 or value.numel() != 1 or not on_host(value)


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)
