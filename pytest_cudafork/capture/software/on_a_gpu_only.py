"""Owns errors of eager code that mean that it cannot run on a CPU, as the software graph does.

It knows them by their words; it does not know where they come from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytest_cudafork.capture.interface.lines import line_of_traceback, shown
from pytest_cudafork.errors import GraphUsageError

__all__ = ["told"]

_CUDA = (
    "the code under test calls CUDA, and the software graph runs it on CPU tensors: take the "
    "device from the graph_backend fixture, leave out what only a GPU has (streams, graphs, "
    "pinned memory), or test it with the backend 'cuda'"
)
_MEANINGS = (
    (
        "capturable=True",
        "torch allows capturable=True alone on a GPU only. Give the optimizer fused=True as well "
        "(Adam, AdamW): both together are taken here and by a CUDA graph; or test it with the "
        "backend 'cuda'",
    ),
    ("Torch not compiled with CUDA", _CUDA),
    ("Tried to instantiate dummy base class", _CUDA),
    ("requires CUDA support", _CUDA),
    ("Found no NVIDIA driver", _CUDA),
    ("driver version is insufficient", _CUDA),
    ("no CUDA-capable device", _CUDA),
)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Explain such errors of the code in a ``with``; others pass.

    Raises:
        GraphUsageError: the code cannot run on a CPU.

    """
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        text = str(error)
        for words, meaning in _MEANINGS:
            if words in text:
                where = line_of_traceback(error.__traceback__)
                at = f" at {shown(where)}" if where else ""
                raise GraphUsageError(
                    f"{type(error).__name__}{at}: {text.splitlines()[0][:200]}\n{meaning}"
                ) from error
        raise
