"""Owns what becomes of compiled functions: they run as the Python code they were made from.

Compiled code for the CPU writes memory past every operator, so it can be neither recorded nor seen.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

__all__ = ["not_compiled"]


def not_compiled() -> Any:
    """A context in which functions of ``torch.compile`` run uncompiled.

    Where the compiler is not loaded yet there is no such function; one that is made within the
    context runs uncompiled because a dispatch mode is active.
    """
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    import torch

    return torch.compiler.set_stance("force_eager")
