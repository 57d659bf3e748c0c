"""How all our Triton kernels are compiled, and the sizes that Triton wants.

As everywhere in Triton, ``TRITON_INTERPRET`` has to be set before import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton

__all__ = ["jit", "next_power_of_2", "varying"]

# Arguments of kernels that differ from step to step.
_OF_A_BATCH = (
    "max_query_len",
    "num_parts",
    "num_reqs",
    "num_rows",
    "num_splits",
    "num_tokens",
    "skip_query_len",
)


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, with a type, so that the sources are checked like all others.

    A kernel is built once for all batches: what depends on one (``_OF_A_BATCH``) is not looked at,
    while of other numbers Triton builds it for 1, for multiples of 16 and for the rest.
    """
    return triton.jit(function, do_not_specialize=varying(function))


def varying(function: Callable[..., Any]) -> list[str]:
    """The parameters of a kernel that depend on a batch."""
    return [name for name in _OF_A_BATCH if name in inspect.signature(function).parameters]


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << max(number - 1, 0).bit_length()
