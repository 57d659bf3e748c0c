"""How torch.compile compiles in tests."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def compiling_here(*, plain: bool = False) -> Iterator[None]:
    """Let torch.compile start no process of its own.

    Args:
        plain: Whether what it makes may be slow, too. It would try each kind of vector instructions
            with a program of its own, and compile its headers ahead: on a new machine that takes
            half a minute.

    """
    config: Any = importlib.import_module("torch._inductor.config")
    slow = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False} if plain else {}
    with config.patch({"compile_threads": 1, **slow}):
        yield
