"""Operators of others whose kernels for CUDA are Python code: engines register such.

They work on tensors that stand for those of a GPU, are told that they lie there, and make others
there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.operators.traits import tensors_in
from pytest_cudafork.capture.stand_ins.tensors.called_back import active, index_now
from pytest_cudafork.compat.torch_graphs.operators import (
    CUDA_KEYS,
    ELSEWHERE_KEYS,
    python_kernels_for_cuda,
    unregister,
)
from pytest_cudafork.observe.base.undo import UndoStack

__tracebackhide__ = of_refusals


def put_in_place(undo: UndoStack, mode: Any) -> None:
    """Lend each such kernel to the CPU, with a mode active in it, until it is undone."""
    lent: dict[Any, Any] = {}
    plain = torch.library.Library.impl

    def lend() -> None:
        for operator, alone in python_kernels_for_cuda():
            lent[operator] = torch.library.Library(operator.namespace, "IMPL")
            plain(lent[operator], operator, _kernel(operator, mode, alone=alone), "CPU")

    @functools.wraps(plain)
    def impl(library: Any, *args: Any, **kwargs: Any) -> None:
        plain(library, *args, **kwargs)
        lend()

    def take_back() -> None:
        for library in lent.values():
            unregister(library)

    undo.callback(take_back)
    undo.set(torch.library.Library, "impl", impl)
    lend()


def _kernel(operator: Any, mode: Any, *, alone: bool) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = tensors_in([args, kwargs])
        if not tensors or any(index_now(each) is not None for each in tensors):
            return active(mode, operator.redispatch, CUDA_KEYS, *args, **kwargs)
        if alone:
            raise NotImplementedError(
                f"Could not run '{operator}' with arguments from the 'CPU' backend: it has a "
                "kernel for CUDA alone"
            )
        return operator.redispatch(ELSEWHERE_KEYS, *args, **kwargs)

    return kernel
