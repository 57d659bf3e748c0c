"""Owns how many cores there are for this process. Used in every process.

It does not know what they are used for.
"""

from __future__ import annotations

import os

from pytest_cudafork.settings import environment


def usable() -> int:
    """Return how many cores this process may use, next to its likes under pytest-xdist."""
    try:
        workers = int(environment.value(environment.XDIST_WORKERS, "1"))
    except ValueError:  # somebody else's variable
        workers = 1
    return max(1, len(os.sched_getaffinity(0)) // max(1, workers))
