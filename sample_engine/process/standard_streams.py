"""Standard descriptors that are closed, as a daemon's may be, are given to ``/dev/null``.

Else the next pipe that is opened gets one of their numbers: what anybody writes to stderr would go
to who reads that pipe, and a child that takes the number for its stderr would write there, too.
"""

from __future__ import annotations

import os
import sys

__all__ = ["fill_standard_descriptors", "replace_closed_streams"]

_LAST = 2


def fill_standard_descriptors() -> None:
    """Open what is closed of 0, 1 and 2, for this process and for the children of it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST:
        os.set_inheritable(fd, True)
    os.close(fd)


def replace_closed_streams(*names: str) -> None:
    """Give ``sys`` streams that may be written to, and lead nowhere, for those that are closed."""
    fill_standard_descriptors()
    for name in names:
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
            setattr(sys, name, stream)
