"""Phases of a test that have passed, and of which there is nothing else to say: their times alone.

A process that runs one test tells each at once; one that runs many tells those of a test together
when it is over. Until then they are in memory that its parent sees, too, in case the process dies
first.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_reports
from pytest_cudafork.compat.unpatched import contextlib, os, struct, zlib

PHASES = ("setup", "call", "teardown")
_PHASE = struct.Struct("<B3d")
"""Which of them; duration, start and stop."""
_HEAD = struct.Struct("<QB")
"""For which test of the process, counted from 1 on, and how many phases are there."""
_MOST = len(PHASES)
_BYTES = _HEAD.size + _MOST * _PHASE.size


def sign_of(location: Any, keywords: Mapping[str, Any]) -> int:
    """Return a number that says what the reports of a test say of the test, beside its name."""
    words = "\0".join([str(part) for part in location] + list(keywords))
    return zlib.crc32(words.encode("utf-8", "surrogatepass"))


_KEYWORDS = pytest.StashKey[dict[str, Any]]()
"""Those of a test that is about to run elsewhere."""


def expected_sign(item: pytest.Item) -> int:
    """Return ``sign_of`` what reports of a test say as a rule."""
    keywords = item.stash[_KEYWORDS] = dict.fromkeys(item.keywords, 1)
    return sign_of(item.location, keywords)


def reports_of(item: pytest.Item, passed: bytes) -> list[pytest.TestReport]:
    """Return the reports of phases that have passed.

    Raises:
        ValueError: They are none.

    """
    if len(passed) % _PHASE.size:
        raise ValueError(f"{len(passed)} bytes are no phases")
    name, location = pytest_reports.id_of(item), item.location
    keywords = item.stash.get(_KEYWORDS, None) or dict.fromkeys(item.keywords, 1)
    made = []
    for number, duration, start, stop in _PHASE.iter_unpack(passed):
        if number >= _MOST:
            raise ValueError(f"there is no phase {number}")
        when: Any = PHASES[number]
        times = {"duration": duration, "start": start, "stop": stop}
        own = dict(keywords)
        made.append(pytest.TestReport(name, location, own, "passed", None, when, **times))
    return made


def pack_phase(report: pytest.TestReport) -> bytes:
    """Return what is to be told of a phase that has passed."""
    times = (report.duration, report.start, report.stop)
    return _PHASE.pack(PHASES.index(str(report.when)), *times)


class PassedPhases:
    """Those of one process that have not been told, on its side."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("pytest-cudafork-passed", os.MFD_CLOEXEC)
        """What the parent reads."""
        os.ftruncate(self.fd, _BYTES)
        self._memory = mmap.mmap(self.fd, _BYTES)  # a test cannot close it
        self._test = 0
        self.held = b""
        """What is to be told."""

    def begin(self) -> None:
        """Begin with the next test."""
        self._test += 1
        self.held = b""
        _HEAD.pack_into(self._memory, 0, self._test, 0)

    def hold(self, report: pytest.TestReport) -> None:
        """Keep a phase."""
        packed = pack_phase(report)
        count, start = len(self.held) // _PHASE.size, _HEAD.size + len(self.held)
        if count < _MOST:
            self._memory[start : start + _PHASE.size] = packed
            _HEAD.pack_into(self._memory, 0, self._test, count + 1)
        self.held += packed

    def drop(self) -> None:
        """Forget what is held: it has been told."""
        self.held = b""
        _HEAD.pack_into(self._memory, 0, self._test, 0)


def left_of(fd: int, test: int) -> bytes:
    """Return what a process that died had not told of a test, the how many-th it was given."""
    with contextlib.suppress(OSError, struct.error):
        data = os.pread(fd, _BYTES, 0)
        number, count = _HEAD.unpack_from(data)
        if number == test and count <= _MOST:
            return data[_HEAD.size : _HEAD.size + count * _PHASE.size]
    return b""
