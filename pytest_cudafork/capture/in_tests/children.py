"""What forked children of a test find of its captures, written for the process that runs the test.

The watch over a thread goes on in a child that is forked within a phase of a test, by ``os.fork``,
multiprocessing or ``run_forked``. Such a child has no report to carry what was found, and may end
without ``atexit``, so it writes down each event at once. The memory file has no name, and nothing
is left of it; it is found by way of its owner, as children may close descriptors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_cudafork.capture.in_tests.words import key_of
from pytest_cudafork.capture.interface.seen import Watch
from pytest_cudafork.capture.judge.findings import Findings
from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import io, os


class Children:
    """The file of one process that runs tests, and what its forked children do with it.

    Args:
        findings: those of the captures of this process; a child has a copy of them.
        watch: that over this process.

    """

    def __init__(self, findings: Findings, watch: Watch) -> None:
        self._findings, self._watch = findings, watch
        self._owner = 0
        """The process that made the file; 0: there is none."""
        self._fd = -1
        self._file: tuple[int, int] | None = None
        """What the descriptor belongs to: a test may close all that it finds."""
        self._read = 0
        findings.heard = self.heard
        _ALL.add(self)

    def begin(self) -> None:
        """Begin a phase of a test, in this process.

        One of isolated tests is a fork of another that runs tests, and has reports of its own.
        """
        is_ours = self._owner == os.getpid() and self._size(self._fd) >= 0
        if not is_ours and hasattr(os, "memfd_create"):
            self._fd, self._read = os.memfd_create("cudafork-captures"), 0
            self._owner, self._file = os.getpid(), _identity(os.fstat(self._fd))

    def _size(self, fd: int) -> int:
        """Return how much the file holds; -1: the descriptor is that of another one, or of none."""
        try:
            state = os.fstat(fd)
        except OSError:
            return -1
        return state.st_size if _identity(state) == self._file else -1

    def close(self) -> None:
        """Let go of the file, in the process that made it."""
        if self._owner == os.getpid() and self._size(self._fd) >= 0:
            os.close(self._fd)
        self._owner = 0

    def heard(self) -> None:
        """Write down what is new, in a child."""
        if self._owner in (0, os.getpid()) or self._findings.in_replay:
            return
        told = self._findings.take()
        if told:
            line = _write_json({"test": self._watch.test, "told": told})
            try:
                with io.open(f"/proc/{self._owner}/fd/{self._fd}", "ab", buffering=0) as file:
                    if self._size(file.fileno()) >= 0:
                        file.write(f"{line}\n".encode())
            except OSError:
                return  # the process that ran the test is gone, and nobody asks

    def forked(self) -> None:
        """Forget, in a child, what its parent will tell."""
        self._findings.take()

    def waits(self) -> bool:
        """Whether a child has written what was not taken."""
        return self._owner == os.getpid() and self._size(self._fd) > self._read

    def take(self, told: dict[str, Any]) -> dict[str, Any]:
        """Add what children have written since the last call to what was found here."""
        for record in self._records() if self.waits() else ():
            test = record["test"]
            _add(told, record["told"], late_of="" if test == self._watch.test else test)
        return told

    def _records(self) -> Iterator[dict[str, Any]]:
        text = os.pread(self._fd, self._size(self._fd) - self._read, self._read)
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return (_read_json(line, None) for line in whole.decode().splitlines())


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


_write_json, _read_json = written_in_c.json_writer(), written_in_c.json_reader()
_ALL: weakref.WeakSet[Children] = weakref.WeakSet()


def _in_child() -> None:
    for each in list(_ALL):
        each.forked()


os.register_at_fork(after_in_child=_in_child)


def _add(told: dict[str, Any], more: Mapping[str, Any], *, late_of: str) -> None:
    """Add what a child has found; ``late_of`` is its test, if that is over."""
    for level in ("errors", "suspicions"):
        known = {key_of(each): each for each in told.get(level, ())}
        for found in more.get(level, ()):
            if late_of:
                found["what"] += f" (in a process that {late_of} has started)"
            one = known.setdefault(key_of(found), found)
            if "raised" in found:  # a test has it if one of its processes has
                one["raised"] = one["raised"] and found["raised"]
        if known:
            told[level] = list(known.values())
    gaps = told.get("not_judged", {})
    for why, count in more.get("not_judged", {}).items():
        told["not_judged"] = gaps = {**gaps, why: gaps.get(why, 0) + count}
    if "backends" in more:
        told["backends"] = sorted({*told.get("backends", ()), *more["backends"]})
    for name, count in more.items():
        if isinstance(count, int):
            told[name] = told.get(name, 0) + count
