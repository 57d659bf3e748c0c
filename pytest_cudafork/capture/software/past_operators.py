"""Owns what becomes of compiled functions: they run as the Python code they were made from.

Compiled code for the CPU writes memory past every operator, so it can be neither recorded nor seen.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from pytest_cudafork.capture.software.patches import replaced

__all__ = ["not_compiled"]


@contextlib.contextmanager
def not_compiled() -> Iterator[None]:
    """For the length of a ``with`` functions of ``torch.compile`` run uncompiled.

    Where the compiler is not loaded yet there is no such function; one that is made within the
    context runs uncompiled because a dispatch mode is active. Functions of torch that compile what
    they are given (``torch.cond``, ``flex_attention``) insist on the compiler: they are handed
    their function back as it is.
    """
    loaded = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    stance: Any = torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()
    original, owner = torch.compile, threading.get_ident()

    @functools.wraps(original)
    def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        mine = threading.get_ident() == owner
        if mine and callable(model) and caller.startswith("torch."):
            return model
        return original(model, *args, **kwargs)

    with stance, replaced(torch, "compile", compile_):
        yield
