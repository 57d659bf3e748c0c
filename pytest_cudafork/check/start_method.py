"""What "auto" stands for: the cheapest start method that is safe for a child of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_cudafork.check.watch import Watch

CLEAN = "clean"


@dataclass(frozen=True)
class ProcessState:
    """The calling process at the moment of the choice.

    ``cuda`` is "clean", "initialized", "poisoned" or "not observable"; ``threads`` counts the
    threads of the operating system, those of libraries included (see ``count_threads``);
    ``other_build`` names an accelerator that torch is built for and that nothing here sees.
    """

    cuda: str = CLEAN
    threads: int = 1
    other_build: str = ""

    @property
    def safe_to_fork(self) -> bool:
        """Whether a fork finds neither CUDA nor a lock that a lost thread holds."""
        return self.cuda == CLEAN and self.threads == 1 and not self.other_build


def process_state(watch: Watch | None) -> ProcessState:
    """Return how safe this process is to fork, now; ``watch`` is that over it, if there is one."""
    from pytest_cudafork.check.state import state_here
    from pytest_cudafork.compat.torch_internals import without_fork
    from pytest_cudafork.process.forking.freeze_before_fork import count_threads

    return ProcessState(state_here(watch).verdict.value, count_threads(), without_fork())


class Choice(NamedTuple):
    """A start method; ``why`` says what spoke against a cheaper one."""

    name: str
    why: str = ""


def automatic(state: ProcessState) -> Choice:
    """Choose for a child of this process: fork where that is safe, else a clean process.

    What a build of torch for ROCm or XPU has started in a process, nothing here can ask, neither in
    this one nor in a fork server: a fresh interpreter is right whatever it was.
    """
    if state.other_build:
        return Choice("spawn", f"not fork: torch is built for {state.other_build}")
    if state.safe_to_fork:
        return Choice("fork")
    why = f"CUDA is {state.cuda}" if state.cuda != CLEAN else f"{state.threads} threads"
    return Choice("forkserver", f"not fork: {why} in the pytest process")
