"""What descriptors this process has open, for tests that none is left."""

from __future__ import annotations

import os


def open_descriptors() -> set[tuple[int, str]]:
    """Return the number of each and what it leads to, without the one that lists them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # that of the list
            continue
        found.add((int(name), target))
    return found
