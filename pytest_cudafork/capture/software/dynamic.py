"""Owns which calls have a result whose shape depends on values, of operators that may have one.

It does not know what is done about it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.software.traits import Traits

__all__ = ["depends_on_values"]

_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


def depends_on_values(traits: Traits, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether this call, of an operator with ``traits.dynamic``, waits for values on a GPU."""
    name = traits.name.split("::", 1)[1]
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name not in _INDEXING:
        return True
    masks = [each for each in args[1] if isinstance(each, Tensor) and _is_mask(each)]
    if not masks:
        return False
    if name == "index":
        return True
    # x[mask] = one number is a masked_fill
    value, accumulate = args[2], len(args) > 3 and bool(args[3])
    return accumulate or value.numel() != 1


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)
