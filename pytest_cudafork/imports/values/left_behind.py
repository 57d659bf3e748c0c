"""What an import leaves in its process, or has taken from it, as the audit tells of it.

Each process that imports a module loads this, and no more of the records than this.
"""

# No ``from __future__ import annotations``: a NamedTuple would compile each text.
from collections.abc import Mapping
from typing import Any, NamedTuple


class RunningThread(NamedTuple):
    """A thread that ran on when the import was over.

    Attributes:
        name: Its name.
        where: The line that had started it, ``file:line``; "" if nobody saw that.
        daemon: Whether an interpreter that ends does not wait for it.

    """

    name: str
    where: str
    daemon: bool


class EnvironmentRead(NamedTuple):
    """A variable of the environment that an import has read.

    Attributes:
        name: Its name; ``WHOLE`` for the whole environment.
        where: The line that read it, ``file:line``.
        is_set: Whether it had a value.

    """

    name: str
    where: str
    is_set: bool


WHOLE = "*"
"""What stands for the whole environment, copied at once, where a variable's name would."""


class Traces(NamedTuple):
    """What an import leaves in its process, or has taken from it.

    Attributes:
        environment: The variables that Python code has read, each with the line that was first.
        descriptors: What the descriptors that are open now, and were not, lead to.
        native_threads: The names of threads that run now, and are none of Python's.

    """

    environment: tuple[EnvironmentRead, ...] = ()
    descriptors: tuple[str, ...] = ()
    native_threads: tuple[str, ...] = ()

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> "Traces":
        """Read what ``to_plain`` returned."""
        return cls(
            tuple(EnvironmentRead(**each) for each in data["environment"]),
            tuple(data["descriptors"]),
            tuple(data["native_threads"]),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return it as lists, dicts and texts."""
        return {
            "environment": [each._asdict() for each in self.environment],
            "descriptors": list(self.descriptors),
            "native_threads": list(self.native_threads),
        }


class Files(NamedTuple):
    """The files of no installed library that an import executed or read, by their paths.

    Attributes:
        own: Those of this import; a folder whose names it listed has a slash at its end.
        shared: Those that its process had executed or read before, for this import and others.

    """

    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
