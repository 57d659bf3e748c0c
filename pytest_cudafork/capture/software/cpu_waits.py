"""Owns functions of torch that do on a CPU what they do not do on a GPU, or past every operator.

For the length of a capture or of a recorded run they do what they do on a GPU, by operators.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_cudafork.capture.software.patches import replaced

__all__ = ["as_on_a_gpu"]


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """For the length of a ``with``, in this thread."""
    owner, module = threading.get_ident(), torch.nn.functional
    original = module.one_hot

    @functools.wraps(original)
    def one_hot(tensor: Tensor, num_classes: int = -1) -> Any:
        if num_classes <= 0 or threading.get_ident() != owner:
            return original(tensor, num_classes)
        zeros = torch.zeros(*tensor.shape, num_classes, dtype=tensor.dtype, device=tensor.device)
        return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)

    copy_of = Tensor.__deepcopy__

    @functools.wraps(copy_of)
    def deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Any:
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_leaf
        if not plain or tensor.layout != torch.strided or threading.get_ident() != owner:
            return copy_of(tensor, memo)
        if id(tensor) not in memo:
            made = tensor.detach().clone()
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, tensor.requires_grad)
            memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    with replaced(module, "one_hot", one_hot), replaced(Tensor, "__deepcopy__", deep_copy):
        yield
