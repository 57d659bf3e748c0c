"""The words of a sick GPU: which test was the first, what the driver says, what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

SECTION = "CUDA health"
"""The section of a report that has failed by itself, and that of the terminal."""
NAME = "cuda_health"
"""The property of a sick test in JUnit files, and the attribute of a report for ``HealthSummary``,
a dictionary with some of the keys below. Attributes travel on to the controller of pytest-xdist."""
SICK = "sick"
"""What was found after the test, as ``Story.plain`` makes it."""
NOT_RUN = "not_run"
"""The test was not run: the one that has broken its process."""
KEPT = "kept"
"""Bytes of device memory that are in use since the test."""

OPEN_CAPTURE = "a CUDA graph capture is still open after the test"
LEFT_IN_CAPTURE = "a failed CUDA graph capture has left torch's allocator in the capture"
KEPT_POOL = "a failed CUDA graph capture has kept its memory"


def what_is_broken(found: str) -> str:
    """Return the clause for the tests that come after a finding."""
    if found == OPEN_CAPTURE:
        return "a CUDA graph capture is open"
    if found.startswith(LEFT_IN_CAPTURE):
        return "torch's allocator is in a lost CUDA graph capture"
    if found.startswith(KEPT_POOL):
        return "memory is lost to a failed CUDA graph capture"
    return "the CUDA context is broken"


class Story(NamedTuple):
    """All that is told of the first sick test of a process.

    Attributes:
        found: What is wrong, in one line.
        phase: The phase after which it was found.
        test: The test, by its node id.
        last_healthy: The test before it in its process; "": there was none.
        pid: The process.
        isolated: Whether it is the test's own.
        recover: Whether the tests after it run elsewhere; else they do not run.
        log: What the driver has logged during the test.
        dump: The path of a GPU core dump.
        dump_asked: Whether one was asked for.

    """

    found: str
    phase: str
    test: str
    last_healthy: str
    pid: int
    isolated: bool
    recover: bool
    log: str = ""
    dump: str = ""
    dump_asked: bool = False

    @property
    def headline(self) -> str:
        """What the summary says."""
        return f"{self.found} (found after {self.phase})"

    @property
    def text(self) -> str:
        """The whole story."""
        healthy = self.last_healthy or "none, it is the first test of this process"
        lines = [
            self.headline,
            f"last healthy: {healthy}",
            f"first sick:   {self.test}",
            "",
            *self._consequence(),
            *self._advice(),
        ]
        if self.log:
            lines += ["", "The driver's log of this test:"]
            lines += [f"    {line}" for line in self.log.splitlines()]
        if self.dump:
            lines += ["", f"GPU core dump: {self.dump}"]
            lines += [f"    cuda-gdb -ex 'target cudacore {self.dump}'"]
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """Return what the terminal's last section needs, as plain data."""
        return {
            "found": self.found,
            "test": self.test,
            "last_healthy": self.last_healthy,
            "pid": self.pid,
            "isolated": self.isolated,
            "recover": self.recover,
        }

    def _consequence(self) -> list[str]:
        where = f"Process {self.pid} cannot be used any more."
        if self.isolated:
            return [f"{where} It was the test's own, or its group's; the next test gets another."]
        if self.recover:
            return [f"{where} The tests after it run in a fresh one."]
        return [
            f"{where} The tests after it in this process are not run;",
            "--cuda-fork-health=recover runs them in a fresh one.",
        ]

    def _advice(self) -> list[str]:
        if self.found == OPEN_CAPTURE:
            return ["End the capture in the test, also when its body raises."]
        if self.found.startswith((LEFT_IN_CAPTURE, KEPT_POOL)):
            return [
                "The capture that failed, or was never ended, is in this test, though it may have",
                "caught the error. A test that has to let one fail needs a process of its own",
                "(@pytest.mark.cuda_isolated).",
            ]
        lines = [
            "Kernels run behind the program: the line that a traceback shows may only be the first",
            "that had to wait. To see the kernel, run this test alone with CUDA_LAUNCH_BLOCKING=1,",
            "or under compute-sanitizer.",
        ]
        if not self.dump_asked:
            lines[-1] += " CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 writes a GPU core dump."
        return lines
