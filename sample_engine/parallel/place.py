"""Which rank of a tensor parallel engine a process is. It imports no torch."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RankPlace"]


class RankPlace(NamedTuple):
    """A rank among ``size`` ranks, and the file in which they find each other.

    ``rendezvous`` is a path that names the same empty file in all of them. Nobody else needs to be
    able to open it, and it may lie in memory.
    """

    rank: int
    size: int
    rendezvous: str
