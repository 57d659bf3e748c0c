"""Operators of torch.distributed: what their schemas do not say, and how to wait for them.

A collective runs beside the thread that calls it. On a GPU a graph orders it by streams; where an
operator is run again on a CPU, its result is there when the work that it returns has been waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

__all__ = ["WAITING", "finishing", "is_collective", "written_arguments"]

WAITING = "_c10d_functional::wait_tensor"
"""Returns its argument when the collective that fills it has ended; no work of its own."""

_BY_WORK, _BY_TENSOR = "c10d::", "_c10d_functional::"

# Those that write what they are given; all others have arguments whose names begin with "output".
_IN_PLACE: Mapping[str, bool] = {  # whether what it held before matters
    "allreduce_": True,
    "allreduce_coalesced_": True,
    "broadcast_": True,
    "reduce_": True,
    "recv_": False,
    "recv_any_source_": False,
}


def is_collective(operator: str) -> bool:
    """Whether an operator, named with its namespace, talks to other processes."""
    return operator.startswith((_BY_WORK, _BY_TENSOR))


def written_arguments(operator: str, names: Iterable[str]) -> dict[str, bool]:
    """Return the arguments that an operator of ``c10d`` writes, and whether it reads them first.

    Its schema does not say so. It returns what it has written, and a piece of work to wait for.
    """
    if not operator.startswith(_BY_WORK):
        return {}
    short = operator.removeprefix(_BY_WORK)
    if short in _IN_PLACE:
        return {"tensors": _IN_PLACE[short]}
    return {name: False for name in names if name.startswith("output")}


def finishing(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a collective and waits for its end."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = op(*args, **kwargs)
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                torch.ops._c10d_functional.wait_tensor(each)
            elif hasattr(each, "wait"):
                each.wait()
        return result

    return call
