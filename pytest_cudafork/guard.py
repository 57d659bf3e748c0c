"""Owns the fork guard: it refuses a fork while CUDA is initialized, before the fork happens.

It does not know how CUDA is seen, nor how tests report a refusal.

The interpreter raises an audit event just before ``os.fork`` and ``os.forkpty``, whatever name they
were imported under, and an exception from an audit hook aborts the call. That covers
``multiprocessing`` with fork, ``pty`` and ``DataLoader`` workers, which all end there.
``subprocess`` is left alone: it goes on to ``exec``, which makes a clean process.
"""

from __future__ import annotations

import enum
import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Protocol

from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.driver import CudaState, Verdict
from pytest_cudafork.observe.ledger import Record
from pytest_cudafork.observe.stacks import stack_of

FORK_OK_ENV = "_CUDAFORK_FORK_OK"
"""Reason of the ``cuda_fork_ok`` marker in force; inherited by children."""

DEFAULT_ALLOW = ("torch.utils.data",)
"""Modules whose forks are watched and not refused, also while CUDA is initialized."""

_EVENTS = frozenset({"os.fork", "os.forkpty"})


class ForkVerdict(enum.Enum):
    """What became of a fork that was about to happen while CUDA was not clean."""

    GUARDED = "guarded"  # refused
    ALLOWED = "allowed"  # by marker or by the list of modules
    WATCHED = "watched"  # the level does not refuse forks
    UNKNOWN = "unknown"  # whether CUDA is initialized is not observable


class Watched(Protocol):
    """What the guard needs of the observer."""

    simulated: bool

    def state(self) -> CudaState:
        """CUDA in this process, now."""

    def note_fork(
        self, *, api: str, verdict: str, rule: str, state: CudaState, frame: FrameType
    ) -> None:
        """Write the fork into the ledger and remember it for the child."""

    def records(self) -> list[Record]:
        """The ledger so far."""


class ForkGuard:
    """Refuses forks of this process and, by inheritance, of all its descendants.

    Made once per process (see ``process_guard``), idle until ``watch`` is called.
    """

    def __init__(self) -> None:
        self._rules: Rules | None = None
        sys.addaudithook(self._hook)

    def watch(self, rules: Rules) -> Callable[[], None]:
        """Guard by these rules from now on; the callable that is returned restores the former."""
        former, self._rules = self._rules, rules

        def undo() -> None:
            self._rules = former

        return undo

    def _hook(self, event: str, _args: tuple[Any, ...]) -> None:
        __tracebackhide__ = True
        if event in _EVENTS and self._rules is not None:
            self._before_fork(event, sys._getframe(1), self._rules)

    def _before_fork(self, api: str, frame: FrameType, rules: Rules) -> None:
        """Decide about one fork.

        Raises:
            CudaForkError: CUDA is initialized here, the level refuses forks, and nothing allows it.

        """
        __tracebackhide__ = True
        observer = rules.observer
        state = observer.state()
        if state.verdict is Verdict.CLEAN:
            return
        verdict, rule = rules.decide(state, frame)
        observer.note_fork(api=api, verdict=verdict.value, rule=rule, state=state, frame=frame)
        if verdict is ForkVerdict.GUARDED:
            raise CudaForkError(_story(observer, api, state, frame))


class Rules(NamedTuple):
    """What is refused: nothing (``refuse`` is False), or forks outside the modules in ``allow``."""

    observer: Watched
    refuse: bool
    allow: tuple[str, ...] = DEFAULT_ALLOW

    def decide(self, state: CudaState, frame: FrameType) -> tuple[ForkVerdict, str]:
        """Decide about a fork in a process that is not clean; the text is the rule that applied."""
        if state.verdict is Verdict.NOT_OBSERVABLE:
            return ForkVerdict.UNKNOWN, state.why
        if not self.refuse:
            return ForkVerdict.WATCHED, "level poison"
        reason = os.environ.get(FORK_OK_ENV)
        if reason is not None:
            return ForkVerdict.ALLOWED, f"marker cuda_fork_ok: {reason}"
        module = allowed_module(frame, self.allow)
        if module:
            return ForkVerdict.ALLOWED, f"code of {module} may fork"
        return ForkVerdict.GUARDED, ""


@functools.cache
def process_guard() -> ForkGuard:
    """Return this process's one guard.

    An audit hook cannot be taken back, so a process that runs several sessions must not add one
    for each.
    """
    return ForkGuard()


def _story(observer: Watched, api: str, state: CudaState, frame: FrameType) -> str:
    from pytest_cudafork.observe.stories import History, fork_story
    from pytest_cudafork.observe.touch import frames_from

    return fork_story(
        History(observer.records()),
        os.getpid(),
        api,
        frames_from(stack_of(frame)),
        why=state.why,
        simulated=observer.simulated,
    )


def allowed_module(frame: FrameType | None, allow: tuple[str, ...]) -> str:
    """Return the module on the stack that is allowed to fork, or ""."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        for prefix in allow:
            if name == prefix or name.startswith(f"{prefix}."):
                return prefix
        frame = frame.f_back
    return ""
