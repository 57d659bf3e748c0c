"""A number with its noun, for all that is told."""

from __future__ import annotations


def count_of(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun; ``many`` where an s is not enough."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
