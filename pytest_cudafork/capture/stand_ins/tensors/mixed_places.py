"""Operators whose tensors have to lie in one place: beside one of the host they raise.

Those that are not listed take tensors of both kinds, or are not known to refuse them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from pytest_cudafork.capture.stand_ins.tensors.storages import KNOWN

_OF_TWO = (
    "add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul",
    "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
_NAMED = (
    "addcdiv", "addcmul", "addmm", "allclose", "atan2", "baddbmm", "bitwise_and", "bitwise_or",
    "bmm", "cat", "clamp", "concat", "embedding", "equal", "floor_divide", "fmod", "gather",
    "index_add", "index_copy", "index_select", "isclose", "layer_norm", "lerp", "linear",
    "logical_and", "logical_or", "masked_fill", "maximum", "minimum", "mm", "mv", "remainder",
    "scatter", "scatter_add", "stack", "where",
)  # fmt: skip
_TOGETHER = frozenset(
    name
    for one in (*_OF_TWO, *_NAMED)
    for name in (one, f"{one}_", f"__{one}__", f"__r{one}__", f"__i{one}__")
)

_NO_NUMBERS = frozenset(("clamp", "clamp_"))
"""Those of them that take no single number of the host either, in a tensor."""


def check_places(function: Any, tensors: Iterable[Tensor], index: int) -> None:
    """Raise what torch raises where a tensor of the host is among those of a GPU.

    A single number may lie on the host, for most of them.

    Raises:
        RuntimeError: it is no such number.

    """
    name = getattr(function, "__name__", "")
    if name not in _TOGETHER:
        return
    numbers_too = name in _NO_NUMBERS
    if any((each.dim() or numbers_too) and KNOWN.lies_on_host(each) for each in tensors):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"cuda:{index} and cpu! (in {name.strip('_')})"
        )
