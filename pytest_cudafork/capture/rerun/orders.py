"""What a process that runs a test once more is told, and what a test's replays came to."""

from __future__ import annotations

from typing import NamedTuple

AS_IT_IS = ""
IDLE = "idle"
"""Replays do nothing, and what they would have written is poisoned."""
CHANGED = "changed"
"""The inputs of a graph are others while it is replayed."""

PROPERTY = "cudafork_replays"
"""The property of a report by which a process says what a test's replays came to."""


class Order(NamedTuple):
    """How replays are to be spoiled; ``most`` is how many may be before the test is stopped."""

    how: str = AS_IT_IS
    most: int = 0

    def text(self) -> str:
        """Return it as the value of an environment variable."""
        return f"{self.how} {self.most}"


def read_order(text: str) -> Order:
    """Return what an environment variable says; the variable is our own."""
    how, _, most = text.partition(" ")
    return Order(how, int(most)) if how else Order()


class Counted(NamedTuple):
    """What the replays of one test came to, up to the end of its call.

    Attributes:
        replays: how many there were.
        spoiled: how many of them were; without an order, none.
        changes: whether the test changes an input of a graph between its capture and a replay.
        elsewhere: how many captures and replays there were that nobody looked at, as other threads
            made them, or replays of such graphs: these replays cannot be spoiled.

    """

    replays: int = 0
    spoiled: int = 0
    changes: bool = False
    elsewhere: int = 0

    def plus(self, more: Counted) -> Counted:
        """Return what these and more replays came to."""
        return Counted(
            self.replays + more.replays,
            self.spoiled + more.spoiled,
            self.changes or more.changes,
            self.elsewhere + more.elsewhere,
        )

    def text(self) -> str:
        """Return it as the value of a report's property."""
        numbers = [self.replays, self.spoiled, int(self.changes)]
        return " ".join(map(str, [*numbers, self.elsewhere] if self.elsewhere else numbers))

    @classmethod
    def read(cls, text: str) -> Counted:
        """Return what a property says.

        Raises:
            ValueError: it says something else.

        """
        replays, spoiled, changes, *more = (int(part) for part in text.split())
        (elsewhere,) = more or [0]
        return cls(replays, spoiled, bool(changes), elsewhere)
