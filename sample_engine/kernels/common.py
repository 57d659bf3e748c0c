"""How all our Triton kernels are compiled, and the sizes that Triton wants.

As everywhere in Triton, ``TRITON_INTERPRET`` has to be set before import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton

__all__ = ["jit", "next_power_of_2"]


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, with a type, so that the sources are checked like all others.

    A kernel that takes ``num_tokens`` is built once for all numbers of tokens.
    """
    varying = [name for name in ("num_tokens",) if name in inspect.signature(function).parameters]
    return triton.jit(function, do_not_specialize=varying)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << max(number - 1, 0).bit_length()
