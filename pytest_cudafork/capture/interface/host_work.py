"""Work that the host does by itself, on tensors that lie there, while a capture is under way.

It runs at once and is no part of a graph. On a GPU its tensors say so; where CPU tensors stand for
those of a GPU, what knows of each where it lies tells the modes that see operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytest_cudafork.compat.torch_graphs.modes import active_modes


class SeesHostWork:
    """What a mode has that is told when operators are the host's."""

    host_works = False


@contextlib.contextmanager
def work_of_host() -> Iterator[None]:
    """For the length of a ``with`` operators of this thread are the host's."""
    modes = [mode for mode in active_modes() if isinstance(mode, SeesHostWork)]
    before = [mode.host_works for mode in modes]
    for mode in modes:
        mode.host_works = True
    try:
        yield
    finally:
        for mode, works in zip(modes, before, strict=True):
            mode.host_works = works
