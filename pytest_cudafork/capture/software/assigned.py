"""Owns how a number of Python is told from a tensor in ``x[mask] = value``.

torch makes a tensor of the number before an operator sees it, past every operator. It knows no
refusal.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pytest_cudafork.capture.software.patches import replaced

__all__ = ["Assigned"]


class Assigned:
    """Knows whether an assignment to elements with a number is under way."""

    def __init__(self) -> None:
        self.number = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch assignments of this thread, for the length of a ``with``."""
        owner, original = threading.get_ident(), Tensor.__setitem__

        @functools.wraps(original)
        def set_item(tensor: Tensor, key: Any, value: Any) -> None:
            if threading.get_ident() != owner:
                original(tensor, key, value)
                return
            before, self.number = self.number, not isinstance(value, Tensor)
            try:
                original(tensor, key, value)
            finally:
                self.number = before

        with replaced(Tensor, "__setitem__", set_item):
            yield
