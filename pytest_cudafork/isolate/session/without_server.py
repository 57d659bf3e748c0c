"""Why tests have no fork server that should, and when it is asked for again."""

from __future__ import annotations

from pytest_cudafork.process.protocol.server_messages import CannotFork

_FIRST_PAUSE = 4
_LONGER = 4
"""How many times as many tests go by before the attempt after that."""


class WithoutServer:
    """The reason why there is none, for the rest of the session or for some tests.

    A shortage of processes, memory or descriptors may have passed by the next test. Where none can
    be started, each test tries. Where one was started and could not fork, the next test does, and
    after that some do without, each time more of them: a server takes as long to start as many
    tests, and where there is never room for its children it would be started in vain.
    """

    def __init__(self) -> None:
        self.reason: CannotFork | None = None
        self._for_good = False
        self._left = self._pause = 0

    def for_good(self, reason: CannotFork) -> CannotFork:
        """Do without one from now on, and return why."""
        self.reason, self._for_good = reason, True
        return reason

    def for_this_test(self, text: str) -> None:
        """Do without one that could not be started."""
        self.reason = CannotFork("", "start", text)

    def for_some_tests(self, text: str, *, last: bool) -> None:
        """Do without one that could not fork; after the last attempt from now on."""
        self.reason, self._for_good = CannotFork("", "lost", text), last
        self._left = self._pause
        self._pause = self._pause * _LONGER or _FIRST_PAUSE

    def for_next_test(self) -> CannotFork | None:
        """Return why the next test does without a server; None: it is to try, or there is one."""
        if self._left:
            self._left -= 1
        elif not self._for_good:
            self.reason = None
        return self.reason
