"""Whether this process may run further tests: what broke it, as found out after a test."""

from __future__ import annotations

from os import getpid
from typing import NamedTuple

import pytest


class Unfit(NamedTuple):
    """Why a process must run no further test.

    Attributes:
        pid: The process; those that are forked from it are not meant.
        since: The test after which it was found out, by its node id.
        why: What is broken, as a clause: "the CUDA context is broken".
        recover: Whether the tests to come are to run in other processes; else they do not run.

    """

    pid: int
    since: str
    why: str
    recover: bool

    @property
    def text(self) -> str:
        """What is broken, and since when."""
        return f"{self.why} since {self.since}"


_UNFIT = pytest.StashKey[Unfit]()


def declare_unfit(config: pytest.Config, since: str, why: str, *, recover: bool) -> Unfit:
    """Say that this process must run no further test; the first to say so is kept."""
    known = unfit(config)
    if known is None:
        known = config.stash[_UNFIT] = Unfit(getpid(), since, why, recover)
    return known


def unfit(config: pytest.Config) -> Unfit | None:
    """Return why this process must run no further test; None if it may."""
    found = config.stash.get(_UNFIT, None)
    return found if found is not None and found.pid == getpid() else None


def recovering_from(config: pytest.Config) -> Unfit | None:
    """Return why tests that would run in this process have to be given another one, or None."""
    found = unfit(config)
    return found if found is not None and found.recover else None
