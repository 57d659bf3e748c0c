"""Owns the exceptions that tell how a child process ended.

It does not know how children are started or watched; ``errors.py`` gives these names on to users.
"""

from __future__ import annotations

__all__ = [
    "ChildCrashed",
    "ChildError",
    "ChildExit",
    "ChildTimeout",
    "RemoteTraceback",
]


class ChildError(Exception):
    """A child process could not give the result of its function.

    Raised itself where the child could not be started, or where its function, result or exception
    cannot travel between processes. Recoverable: the calling process is as it was.
    """


class ChildExit(ChildError):
    """The child ended by ``sys.exit``, ``os._exit`` or the like instead of returning.

    ``code`` is the exit status (of ``sys.exit``, whatever was passed to it). Recoverable.
    """

    def __init__(self, message: str = "", code: object = None) -> None:
        super().__init__(message)
        self.code = code


class ChildCrashed(ChildError):
    """The child was killed by a signal, or ended with an error at its very end.

    ``exitcode`` is negative for a signal, as in ``multiprocessing``; ``signal_name`` is its name
    or ""; ``stacks`` is what faulthandler wrote at the crash, or "". Recoverable.
    """

    def __init__(
        self,
        message: str = "",
        exitcode: int | None = None,
        signal_name: str = "",
        stacks: str = "",
    ) -> None:
        super().__init__(message)
        self.exitcode = exitcode
        self.signal_name = signal_name
        self.stacks = stacks


class ChildTimeout(ChildError):
    """The child exceeded its time limit and was ended, its descendants with it.

    ``timeout`` is the limit in seconds; ``stacks`` are the stacks of all its threads at that
    moment, or "" where the child could not give them. Recoverable.
    """

    def __init__(self, message: str = "", timeout: float | None = None, stacks: str = "") -> None:
        super().__init__(message)
        self.timeout = timeout
        self.stacks = stacks


class RemoteTraceback(Exception):
    """The cause of an exception that came from a child: the child's traceback, as text."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in the child process:\n\n{self.text}"


for _public in (ChildCrashed, ChildError, ChildExit, ChildTimeout):
    _public.__module__ = "pytest_cudafork"
del _public
