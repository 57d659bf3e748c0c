"""What is known of a script that has run: how it ended, what it said, what it did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_cudafork.check.findings import Finding, tell, worst
from pytest_cudafork.errors import ChildCrashed, ChildError, ChildExit
from pytest_cudafork.observe.driver.probe import CudaState
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.observe.story.words import headline
from pytest_cudafork.process import exit_status
from pytest_cudafork.programs.account import places_lines
from pytest_cudafork.programs.deeds import Deeds, Fork, ProcessStart, StartMethodInForce
from pytest_cudafork.programs.program import LeftProcess
from pytest_cudafork.settings import environment

_LAST_LINES = 20
_LAST_CHARACTERS = 4000


@dataclass(frozen=True)
class ScriptResult:
    """A script that has ended, and what it and all that descends from it did.

    Attributes:
        command: The command line.
        environment: Of each variable that it was given otherwise than this process has it, the
            value here and there; None: not set.
        method: The start method that its environment asks for; None: none was asked for.
        parent: CUDA in this process when the script was started. A program that is started by
            ``exec`` inherits none of that.
        exitcode: Its exit status; negative: the signal that killed it; None: not known.
        stdout_bytes: What it and its descendants wrote; of more than 2 MiB the beginning and the
            end.
        stderr_bytes: Likewise.
        seconds: How long it ran.
        left: What it had left running when it ended with status 0; ended since.
        deeds: What its ledger tells, with the whole stacks.

    """

    command: tuple[str, ...]
    environment: Mapping[str, tuple[str | None, str | None]]
    method: str | None
    parent: CudaState
    exitcode: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    seconds: float
    left: tuple[LeftProcess, ...]
    deeds: Deeds
    simulated: bool
    """Whether the driver that it saw was the phantom."""

    @property
    def stdout(self) -> str:
        """Its output as text; bytes that are no UTF-8 are written out."""
        return self.stdout_bytes.decode("utf-8", "backslashreplace")

    @property
    def stderr(self) -> str:
        """Its error output as text; bytes that are no UTF-8 are written out."""
        return self.stderr_bytes.decode("utf-8", "backslashreplace")

    @property
    def start_method(self) -> StartMethodInForce:
        """The start method of ``multiprocessing`` in its first process, and who chose it."""
        return self.deeds.start_method

    @property
    def starts(self) -> tuple[ProcessStart, ...]:
        """What ``multiprocessing`` was told to start: method and line of each."""
        return self.deeds.starts

    @property
    def touches(self) -> tuple[Touch, ...]:
        """The calls that initialize CUDA, or try to, of it and its descendants."""
        return self.deeds.touches

    @property
    def forks(self) -> tuple[Fork, ...]:
        """The forks of it and its Python descendants, harmless and refused ones too."""
        return self.deeds.forks

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What of that is an error."""
        return self.deeds.findings

    @property
    def unseen(self) -> tuple[str, ...]:
        """What could not be seen, in words: that is not the same as clean."""
        return self.deeds.unseen

    def check(self) -> ScriptResult:
        """Return the result itself if nothing is wrong with it.

        Raises:
            CudaForkError, PoisonedTouchError: A finding; told with its line.
            ChildCrashed: A signal killed it.
            ChildExit: Its exit status is not 0.
            ChildError: It left processes running, or it was not watched.

        """
        __tracebackhide__ = True
        self.check_findings()
        if self.exitcode is not None and self.exitcode < 0:
            name = exit_status.signal_name(self.exitcode)
            raise ChildCrashed(str(self), self.exitcode, name)
        if self.exitcode != 0:
            raise ChildExit(str(self), self.exitcode)
        if self.left or not self.deeds.processes:
            raise ChildError(str(self))
        return self

    def check_findings(self) -> None:
        """Check that nothing that it did is an error.

        Raises:
            CudaForkError, PoisonedTouchError: Something is; told with its line.

        """
        __tracebackhide__ = True
        if self.findings:
            findings = list(self.findings)
            story = tell(findings, self.deeds.history, simulated=self.simulated, told={})
            raise worst(findings).error(f"{story}\n\nThat was in\n{self.summary}")

    def __str__(self) -> str:
        """Tell the whole of it, as a reader of a failure needs it."""
        output = [*_end_of("stdout", self.stdout), *_end_of("stderr", self.stderr)]
        return "\n".join([self.summary, *output])

    @property
    def summary(self) -> str:
        """The whole of it without its output."""
        how = exit_status.describe(self.exitcode)
        lines = [f"{' '.join(self.command)}: {how} after {self.seconds:.1f} s"]
        asked = f"asked for: {self.method}; " if self.method else ""
        force = self.start_method
        lines.append(f"  start method: {asked}in force: {force.method} ({force.why})")
        lines.append(
            f"  CUDA in the process that ran it: {self.parent.verdict.value} ({self.parent.why}); "
            "a program started by exec inherits nothing of it"
        )
        lines.append(f"  environment: {self._environment_words()}")
        lines += places_lines("  touches of CUDA", [headline(touch) for touch in self.touches])
        lines += places_lines("  forks", [f"{one.place}: {one.fate}" for one in self.forks])
        starts = [f"{one.place}: by {one.method}" for one in self.starts]
        lines += places_lines("  started by multiprocessing", starts)
        lines += places_lines(
            "  left running, and ended since",
            [f"{one.pid} {plain(one.command)}" for one in self.left],
        )
        lines += places_lines("  not observable", list(self.unseen))
        return "\n".join(lines)

    def _environment_words(self) -> str:
        words = [
            f"{name} taken away" if after is None else f"{name}={plain(after)}"
            for name, (_, after) in self.environment.items()
            if not name.startswith(environment.PREFIX) and name != environment.PYTHON_PATH
        ]
        return ", ".join([*words, "and what the watch needs"])


def _end_of(title: str, text: str) -> list[str]:
    """Return the last lines of an output."""
    if not text.strip():
        return []
    shown = text[-_LAST_CHARACTERS:].splitlines()[-_LAST_LINES:]
    whole = len(shown) == len(text.splitlines())
    head = f"  {title}:" if whole else f"  {title}, its end:"
    return [head, *(f"    {plain(line)}" for line in shown)]


def command_name(command: tuple[str, ...]) -> str:
    """Return what a command runs, without the interpreter: a script, or ``-m module``."""
    shown = command[1:3] if command[1] == "-m" else command[1:2]
    return " ".join(os.fspath(word) for word in shown)
