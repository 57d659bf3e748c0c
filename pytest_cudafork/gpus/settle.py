"""A session whose tests wait for the memory of their GPUs to be back: ``--cuda-fork-settle``.

Before a test the GPUs that it may use must be as they were when the session began, give or take
what the option allows. What tests of this session have left behind is ended meanwhile, and nothing
else.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_cudafork.errors import GpuBusyError
from pytest_cudafork.gpus import memory, waiting
from pytest_cudafork.process.descendants import process_state
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.gpus.inventory import Gpu
    from pytest_cudafork.gpus.memory import Leftover

TIMEOUT = 60.0
"""How long a test waits, in seconds."""


class Settling:
    """What the session knows of its GPUs before its first test, and by what it knows its own."""

    def __init__(self, gpus: Sequence[Gpu], spare: int) -> None:
        """Measure what is in use on the GPUs now; ``spare`` bytes more are allowed."""
        self.gpus = tuple(gpus)
        self._spare = spare
        self._mark = f"cudafork-session-{os.getpid()}-{os.urandom(4).hex()}"
        self._things = contextlib.ExitStack()
        environment.set_variable(self._things, environment.TEST_SESSION, self._mark)
        self._mapping: Any = None
        with contextlib.suppress(OSError):  # out of descriptors: forks without exec are not known
            self._mapping = memory.put_mark(self._mark)
        found = memory.look(gpus)
        self.unknown = waiting.unknown_of(gpus, found) if gpus else waiting.unknown_machine()
        """Of which GPUs nobody can tell, and why."""
        self._start = {
            uuid: 0 if isinstance(one, memory.Unknown) else one.used for uuid, one in found.items()
        }

    def close(self) -> None:
        """Take the mark from this process."""
        self._things.close()

    def why_not(self, gpus: Sequence[Gpu]) -> str:
        """Wait until the GPUs are as they were; return why a test cannot run on them, or ""."""
        allowed = {gpu.uuid: self._start.get(gpu.uuid, 0) + self._spare for gpu in gpus}
        try:
            waiting.until_idle(gpus, allowed, TIMEOUT, end=self.end_orphans)
        except GpuBusyError as error:
            return (
                f"memory of its GPUs is not back, so it was not run: {error}. End what the named "
                "tests start before they end; --cuda-fork-settle=GiB says how much may stay in use"
            )
        return ""

    def end_orphans(self, held: Sequence[Leftover]) -> None:
        """End the processes among these that tests of this session have left behind.

        One that was started in a set-up may belong to a fixture that other tests need, too.
        """
        for one in held:
            if one.test and self._is_ours(one.pid) and not _belongs_to_a_fixture(one.pid):
                with contextlib.suppress(OSError):
                    os.kill(one.pid, signal.SIGKILL)

    def _is_ours(self, pid: int) -> bool:
        """Whether a process was started by this session, and nobody up to here is its parent."""
        return memory.has_mark(pid, self._mark) and os.getpid() not in ancestors(pid)


def ancestors(pid: int) -> list[int]:
    """Return the parents of a process, the nearest first, as far as they live."""
    found: list[int] = []
    while pid > 1 and pid not in found:
        found.append(pid)
        pid = process_state.parent_of(pid)
    return found[1:]


def _belongs_to_a_fixture(pid: int) -> bool:
    return memory.phase_of(pid) == "setup"
