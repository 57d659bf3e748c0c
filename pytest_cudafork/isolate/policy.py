"""Owns the choice of how a test is isolated. Pure.

It does not read options, markers or the driver: their values are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

CLEAN = "clean"


class Wishes(Protocol):
    """What the markers of a test ask for (``markers.Marks`` is one)."""

    @property
    def spawn_only(self) -> bool:
        """Never fork this test."""

    @property
    def isolated(self) -> bool:
        """Run it in a process of its own."""

    @property
    def method(self) -> str:
        """How: "auto", "fork", "forkserver" or "spawn"."""

    @property
    def timeout(self) -> float | None:
        """Its time limit in seconds."""


@dataclass(frozen=True)
class IsolationConfig:
    """What the session asks for.

    ``every_test`` is a method that every test is to be isolated by, or None; ``timeout`` the time
    limit (seconds) of tests that set none; ``debugger`` whether ``--pdb`` or ``--trace`` is on;
    ``inside`` whether this process runs an isolated test already.
    """

    every_test: str | None = None
    timeout: float | None = None
    debugger: bool = False
    inside: bool = False


@dataclass(frozen=True)
class ProcessState:
    """The pytest process at the moment of the choice.

    ``cuda`` is "clean", "initialized", "poisoned" or "not observable"; ``threads`` counts the
    threads of the operating system, those of libraries included (see ``count_threads``).
    """

    cuda: str = CLEAN
    threads: int = 1


@dataclass(frozen=True)
class Method:
    """How to isolate a test; with ``refusal``, why it must fail instead of being run."""

    name: str
    timeout: float | None = None
    refusal: str = ""


def choose(marks: Wishes, config: IsolationConfig, state: ProcessState) -> Method | None:
    """Choose how to run one test; None means in this process, as ever.

    The debugger needs the terminal, so under ``--pdb`` nothing is isolated. ``spawn_only`` beats
    everything else, and a marker beats the session. A fork that was asked for is refused where the
    child would be poisoned, with the reason; "auto" forks only a clean process without threads,
    for a lock that another thread holds stays locked in the child.
    """
    if config.inside or config.debugger:
        return None
    timeout = config.timeout if marks.timeout is None else marks.timeout
    if marks.spawn_only:
        return Method("spawn", timeout)
    if marks.isolated and (marks.method != "auto" or config.every_test is None):
        wanted = marks.method
    elif config.every_test is not None:
        wanted = config.every_test
    else:
        return None
    if wanted == "auto":
        safe = state.cuda == CLEAN and state.threads == 1
        return Method("fork" if safe else "forkserver", timeout)
    if wanted == "fork" and state.cuda in ("initialized", "poisoned"):
        return Method("fork", timeout, _refusal(state.cuda))
    return Method(wanted, timeout)


def _refusal(cuda: str) -> str:
    happened = {
        "initialized": "CUDA is initialized in the pytest process",
        "poisoned": "the pytest process was itself forked from one that had initialized CUDA",
    }[cuda]
    return (
        f"This test asks to run in a fork of the pytest process, but {happened}: every CUDA call "
        "in the child would fail. Nothing was forked. Remove the touch (the summary names it), or "
        "use cuda_isolated(method='forkserver') or spawn_only."
    )


def count_threads() -> int:
    """Return the number of operating system threads of this process; 1 where it cannot be told."""
    import os

    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1
