"""The choice of how a test is isolated, from the values of options, markers and the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_cudafork.health.fitness import Unfit

from pytest_cudafork.check.start_method import ProcessState, automatic


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

    @property
    def env(self) -> tuple[tuple[str, str], ...]:
        """Variables that its process has before anything is imported."""

    @property
    def left_alone(self) -> bool:
        """Never isolate this test: it does so by itself."""


@dataclass(frozen=True)
class IsolationConfig:
    """What the session asks for.

    ``every_test`` is a method that every test is to be isolated by, "none" if no test may be, or
    None; ``timeout`` the time limit (seconds) of tests that set none; ``debugger`` whether
    ``--pdb`` or ``--trace`` is on; ``inside`` whether this process runs an isolated test already;
    ``unfit`` why tests that would run in this process must have another one.
    """

    every_test: str | None = None
    timeout: float | None = None
    debugger: bool = False
    inside: bool = False
    unfit: Unfit | None = None


@dataclass(frozen=True)
class Method:
    """How to isolate a test; with ``refusal``, why it must fail instead of being run.

    ``why`` says what spoke against a cheaper method; ``since`` names the test that has broken the
    process in which this one would have run.
    """

    name: str
    timeout: float | None = None
    refusal: str = ""
    why: str = ""
    since: str = ""


def wanted_method(marks: Wishes, config: IsolationConfig) -> str | None:
    """Return the method that is asked for, "auto" included; None means in this process.

    The debugger needs the terminal, so under ``--pdb`` nothing is isolated, nor where the session
    says "none". ``spawn_only`` beats everything else, and a marker beats the session; a marker that
    leaves the method open takes the session's; but variables that are to be there before the first
    import need a fresh interpreter. What is left would run in this process, which may be unfit for
    it: a child of the fork server has nothing of what broke it.
    """
    if config.inside or config.debugger or config.every_test == "none" or marks.left_alone:
        return None
    if marks.spawn_only:
        return "spawn"
    if marks.isolated and marks.method == "auto" and marks.env:
        return "spawn"
    if marks.isolated and (marks.method != "auto" or config.every_test is None):
        return marks.method
    if config.every_test is None and config.unfit is not None:
        return "forkserver"
    return config.every_test


def choose(
    marks: Wishes, config: IsolationConfig, state: Callable[[], ProcessState]
) -> Method | None:
    """Choose how to run one test; None means in this process, as ever.

    ``state`` tells how safe this process is to fork, and is asked only of what may be forked from
    it.

    A fork that was asked for is refused where the child would be poisoned, with the reason; "auto"
    forks only a clean process without threads, for a lock that another thread holds stays locked
    in the child (``check/start_method.py``).
    """
    wanted = wanted_method(marks, config)
    if wanted is None:
        return None
    timeout = config.timeout if marks.timeout is None else marks.timeout
    method = Method(wanted, timeout)
    meant = marks.isolated or marks.spawn_only or config.every_test is not None
    if config.unfit is not None and not meant:
        return replace(method, why=f"not here: {config.unfit.text}", since=config.unfit.since)
    if wanted == "auto":
        name, why = automatic(state())
        return replace(method, name=name, why=why)
    if wanted == "fork":
        cuda = state().cuda
        if cuda in ("initialized", "poisoned"):
            return replace(method, refusal=_refusal(cuda))
    return method


def for_another(method: Method, marks: Wishes, config: IsolationConfig) -> Method:
    """Return how to run a test in the process of another one, which ran by ``method``."""
    timeout = config.timeout if marks.timeout is None else marks.timeout
    return method if method.timeout == timeout else replace(method, timeout=timeout)


def instead_of_fork_server(method: Method, reason: str) -> Method:
    """Return what to do with a test that the fork server cannot run: a fresh interpreter can."""
    return replace(method, name="spawn", why=f"not forkserver: {reason}")


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
