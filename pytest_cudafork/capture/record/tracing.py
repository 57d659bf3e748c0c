"""What ``torch.jit`` traces is not looked at: under any dispatch mode its operators fail.

A number of Python is a tensor to them, which comes to a mode as a number again, and which operators
that want a tensor do not take.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch.jit

from pytest_cudafork.capture.record.history import History
from pytest_cudafork.compat.torch_graphs.functions import TRACERS
from pytest_cudafork.compat.torch_graphs.modes import without_dispatch
from pytest_cudafork.observe.base.hooking import hook
from pytest_cudafork.observe.base.undo import UndoStack


@contextlib.contextmanager
def tracing_let_pass(history: History) -> Iterator[None]:
    """Let this thread trace unseen, for the length of a ``with``.

    The code that is traced may write any memory, so that all is forgotten that was known of it.
    Within a capture nothing is changed.
    """
    owner = threading.get_ident()

    def around(
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: FrameType | None,
    ) -> Any:
        if threading.get_ident() != owner or history.uses is not None:
            return proceed(*args, **kwargs)
        try:
            with without_dispatch():
                return proceed(*args, **kwargs)
        finally:
            history.forget()

    with UndoStack() as undo:
        for name in TRACERS:
            if hasattr(torch.jit, name):
                hook(undo, torch.jit, name, around)
        yield
