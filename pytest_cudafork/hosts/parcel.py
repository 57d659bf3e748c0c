"""What comes home from a worker on another host, and its form on the way."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

from pytest_cudafork.compat.unpatched import time
from pytest_cudafork.observe.base.other_hosts import file_at_home
from pytest_cudafork.observe.base.records import Record

CARRIED = "_cudafork_ledger"
"""The attribute of a report, and the key of a worker's output, under which it travels."""


class Clocks(NamedTuple):
    """The time of the day on a host, and what the clock of ledgers said at that time.

    Each process looks once, when it begins: the two are not read at the same moment, and the time
    of the day may be set meanwhile, so what is ordered on one host would not be by several looks.
    """

    wall_ns: int
    clock_ns: int

    @classmethod
    def now(cls) -> Clocks:
        """Look."""
        return cls(time.time_ns(), time.monotonic_ns())


class Parcel(NamedTuple):
    """What a worker has seen since the last one.

    Attributes:
        host: The name of its host.
        root: The root folder of pytest there.
        wall_ns: As ``Clocks`` has it, there.
        clock_ns: Likewise.
        records: The new records of its ledger.
        damage: What is known to be missing from that, in words; told in the last parcel.
        limits: What could not be seen there, in words; told in the last one.

    """

    host: str
    root: str
    wall_ns: int
    clock_ns: int
    records: list[Record]
    damage: list[str]
    limits: list[str]

    @classmethod
    def made(cls, root: str, clocks: Clocks, records: list[Record]) -> Parcel:
        """Make one in the worker."""
        return cls(socket.gethostname(), root, *clocks, records, [], [])

    def to_text(self) -> str:
        """Return it as text, which every version of execnet carries."""
        return json.dumps(self._asdict())

    @classmethod
    def from_text(cls, text: str) -> Parcel:
        """Read what ``to_text`` wrote.

        Raises:
            ValueError: It is nothing of the kind, as from a worker with another version.

        """
        try:
            return cls(**json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None

    def at_home(self, root: str, here: Clocks) -> list[dict[str, Any]]:
        """Return the records with the times and the files of the controller's host.

        Clocks of two hosts have nothing in common, so that the time of the day tells what was when,
        as far as the hosts agree on it. Files below the root folder are those of the same names
        here.
        """
        later = (self.wall_ns - self.clock_ns) - (here.wall_ns - here.clock_ns)
        home = []
        for each in self.records:
            record = dict(each)
            if isinstance(record.get("t"), int):
                record["t"] += later
            stack = record.get("stack")
            if isinstance(stack, list):
                record["stack"] = [
                    [file_at_home(file, self.root, root), *rest] for file, *rest in stack
                ]
            if isinstance(record.get("filename"), str):
                record["filename"] = file_at_home(record["filename"], self.root, root)
            home.append(record)
        return home
