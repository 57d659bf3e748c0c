"""The conversation of a fork server with the process that started it, and its settings.

Each message is one packet of a ``SOCK_SEQPACKET`` connection and holds one frame with the server's
cookie. Descriptors come with two of them; their order is said at the class. What does not bear the
cookie is no message: a process that was forked from the parent has its end of the connection too,
and may write to any descriptor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.process.protocol.messages import Message, of_kind

LONGEST_PACKET = 1 << 18
MOST_DESCRIPTORS = 4
NAMES_AT_ONCE = 500
"""So many names of jobs fit into one packet, however long they are."""


class Limits(NamedTuple):
    """What unattended jobs may take; 0 means no limit.

    Attributes:
        at_once: How many run at the same time.
        seconds: How long one may take.
        memory: Bytes that a child may hold beyond what it was forked with; of every child.

    """

    at_once: int = 1
    seconds: float = 0.0
    memory: int = 0


class ServerSettings(NamedTuple):
    """What a fork server is told when it starts.

    Attributes:
        prepare: A function, "package.module:function", that gets the server ready: it is called
            with the ``ForkServer`` and has to call its ``serve``. "": nothing is to be prepared.
        data: Plain data for that function.
        most_ahead: How many children wait for work at most, where there are cores for them; 0: a
            child is forked when it is asked for.
        fold: Whether to make forks cheaper in idle time (``freeze_before_fork.Collapse``).
        ignore_signals: Whether it ignores signals that its children may send to their parent.
        limits: For unattended jobs.
        path: ``sys.path``.
        argv: ``sys.argv``.
        preparing: When it is that a server dies which does not get ready, in words.

    """

    prepare: str = ""
    data: Any = None
    most_ahead: int = 0
    fold: bool = False
    ignore_signals: bool = False
    limits: Limits = Limits()
    path: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    preparing: str = "before it was ready"

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self._asdict(), "limits": self.limits._asdict()}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> ServerSettings:
        """Read what ``to_plain`` returned."""
        return cls(**{**data, "limits": Limits(**data["limits"])})


class CannotFork(NamedTuple):
    """Why a process cannot be forked.

    Attributes:
        path: The file whose import did it, or "".
        kind: "cuda", "threads", "start" or "lost".
        text: One line.
        pid: The process that showed it, or 0.
        output: What the process wrote before it failed.

    """

    path: str
    kind: str
    text: str
    pid: int = 0
    output: str = ""

    @property
    def reason(self) -> str:
        """What to tell of a test that cannot have a child of the fork server."""
        if self.path:
            return f"after the import of {os.path.basename(self.path)}, {self.text}"
        last = self.output.rpartition("\n")[2].strip()
        return f"{self.text} ({last})" if last else self.text


# -- what the server is told -----------------------------------------------------------------------


@of_kind("fork")
class Fork(Message):
    """Fork a child that waits for its job."""


@of_kind("waiting")
class Waiting(Message):
    """The parent does nothing but wait until the server is ready."""


@of_kind("queue")
class QueueJobs(Message):
    """Run jobs unattended: the same function for each of the names."""

    entry: str
    names: list[str]


@of_kind("drop")
class DropJobs(Message):
    """Jobs that need not be run after all, as far as they have not begun."""

    names: list[str]


@of_kind("preload")
class Preload(Message):
    """Modules that the server should have imported before it forks on."""

    names: list[str]


# -- what the server says --------------------------------------------------------------------------


@of_kind("ready")
class Ready(Message):
    """The preparation is over.

    Attributes:
        why_not: The fields of a ``CannotFork``; None if it can fork.
        ahead: How many children it forks unasked.
        about: What the preparation has to tell.

    """

    why_not: dict[str, Any] | None
    ahead: int
    about: dict[str, Any]


@of_kind("child")
class ChildForked(Message):
    """A child waits for its job.

    Two descriptors come with it: the parent's end of its channel, and the file of its stacks.
    """

    pid: int
    cookie: bytes


@of_kind("refused")
class ForkRefused(Message):
    """A child that was asked for could not be forked."""

    text: str


@of_kind("ended")
class ChildEnded(Message):
    """A child and its process group are gone; the exit code is negative for a signal."""

    pid: int
    exitcode: int


@of_kind("job_begins")
class JobBegins(Message):
    """An unattended job is about to be forked.

    It may end the server before that can say more, and all that it leaves bears this cookie.
    """

    name: str
    cookie: bytes


@of_kind("job_started")
class JobStarted(Message):
    """An unattended job has begun."""

    name: str
    pid: int
    cookie: bytes


@of_kind("job_ended")
class JobEnded(Message):
    """An unattended job is over.

    One descriptor comes with it: a file with what the job has left in its mailbox. ``output`` and
    ``stacks`` are the ends of what it wrote.
    """

    name: str
    pid: int
    exitcode: int
    timed_out: bool
    over_memory: bool
    output: str
    stacks: str


@of_kind("jobs_refused")
class JobsRefused(Message):
    """No unattended job can be started, and none runs whose end would make room; it ends."""

    text: str


@of_kind("preloaded")
class Preloaded(Message):
    """A module is imported; a sign of life."""

    name: str


@of_kind("took_place")
class TookPlace(Message):
    """A process that was forked from the server goes on in its place."""

    pid: int


@of_kind("lost")
class Lost(Message):
    """A process that had taken the server's place has died, and with it all jobs without an answer.

    They must be asked for again: the process from which it was forked goes on in its place.
    """

    names: list[str]
    exitcode: int


def in_packets(names: list[str]) -> Iterator[list[str]]:
    """Cut a list of names into parts that fit into a packet each."""
    for start in range(0, len(names), NAMES_AT_ONCE):
        yield names[start : start + NAMES_AT_ONCE]
