"""What tests of ``capture_pair`` share: a graph mode and a batch descriptor as vLLM has them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple


class Mode(enum.Enum):
    """As vLLM's CUDAGraphMode."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


class Desc(NamedTuple):
    """A batch descriptor."""

    num_reqs: int
    cg_mode: Mode = Mode.FULL


def iter_nothing() -> Iterator[int]:
    """A generator: nothing of its body has run when it is returned."""
    yield from ()
