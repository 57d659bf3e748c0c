"""The operators of ``torch.distributed``: what they write, and when their results are there.

Their schemas do not say that they write their outputs, and they return before the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_cudafork.compat.torch_graphs.operators import wait_for_collective

OVERWRITTEN = frozenset(
    {
        "c10d::_allgather_base_",
        "c10d::_reduce_scatter_base_",
        "c10d::allgather_",
        "c10d::allgather_coalesced_",
        "c10d::allgather_into_tensor_coalesced_",
        "c10d::alltoall_",
        "c10d::alltoall_base_",
        "c10d::gather_",
        "c10d::gather_into_tensor_",
        "c10d::recv_",
        "c10d::recv_any_source_",
        "c10d::reduce_scatter_",
        "c10d::reduce_scatter_tensor_coalesced_",
        "c10d::scatter_",
    }
)
"""Their first argument holds the results, and what it held before does not matter."""

UPDATED = frozenset(
    {"c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::broadcast_", "c10d::reduce_"}
)
"""Their first argument is read and written."""

_FUNCTIONAL = "_c10d_functional::"


def is_collective(name: str) -> bool:
    """Whether an operator, by its name with its namespace, is one of these."""
    return name.startswith(("c10d::", _FUNCTIONAL))


def group_in(argument: Any) -> Any:
    """Return the ``ProcessGroup`` that is in an argument of an operator; None: there is none.

    Operators get it in a ``ScriptObject``. Whatever outlives the call keeps the group itself and
    makes such an object anew by ``boxed()``: when a ``ScriptObject`` is the last that holds a
    group, the threads of the group are joined with the GIL held, and wait for ever if one of them
    needs it, to free a tensor or to call back. Torch frees a ``ProcessGroup`` without the GIL.
    """
    if not isinstance(argument, torch.ScriptObject) or not dist.is_available():
        return None
    try:
        return dist.ProcessGroup.unbox(argument)
    except RuntimeError:  # it holds something else
        return None


def finished(op: Any, name: str) -> Callable[..., Any]:
    """Return the call of an operator that waits until its results are there."""
    if not is_collective(name):
        return op  # type: ignore[no-any-return]

    def call(*args: Any, **kwargs: Any) -> Any:
        result = op(*args, **kwargs)
        for each in _flat(result):
            if not isinstance(each, Tensor):
                each.wait()
            elif name.startswith(_FUNCTIONAL):
                wait_for_collective(each)
        return result

    return call


def _flat(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _flat(each)
    elif tree is not None:
        yield tree
