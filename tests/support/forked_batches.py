"""Runs pieces of work in batches, each batch in a process forked from this one.

For work after which a process may be of no use: a capture that fails on a GPU, a crash, a hang. A
process is given up after a piece that did not end well, and the rest of its batch gets a new one.
"""

from __future__ import annotations

import collections
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Limits", "Said", "run_batches"]

Said = dict[str, Any]
"""What a piece of work answered, and after how many ``seconds``."""


@dataclass(frozen=True)
class Limits:
    """How much may be used.

    Attributes:
        jobs: processes at once.
        seconds: the time limit of one piece.
        budget: seconds for all; what was not run by then is left out.

    """

    jobs: int = 2
    seconds: float = 60.0
    budget: float = 600.0


class _Running(NamedTuple):
    pid: int
    batch: list[Any]
    begun: float


def run_batches(
    batches: Sequence[list[Any]],
    work: Callable[[Any], Said],
    goes_on: Callable[[Said], bool],
    limits: Limits,
) -> dict[int, Said]:
    """Run ``work`` for each piece of each batch.

    Args:
        batches: The pieces; those of one batch share a process as long as all goes well.
        work: Called with a piece, in a child; returns what JSON can hold.
        goes_on: Whether the process is good for another piece after this answer.
        limits: What may be used.

    Returns:
        What was said, by ``id`` of the piece. A piece whose process died has ``died``, the exit
        status, and one that raised has ``raised``, the traceback, or both ends of it.

    """
    waiting = collections.deque(batches)
    running: dict[int, _Running] = {}  # by descriptor
    texts: dict[int, bytes] = {}
    said: dict[int, Said] = {}
    end = time.monotonic() + limits.budget
    late = False
    while waiting or running:
        while waiting and len(running) < limits.jobs:
            batch = waiting.popleft()
            out, pid = _start(batch, work, goes_on, limits.seconds)
            running[out], texts[out] = _Running(pid, batch, time.monotonic()), b""
        if time.monotonic() > end and not late:
            late = True
            waiting.clear()
            for each in running.values():
                os.kill(each.pid, signal.SIGKILL)
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for out in ready:
            more = os.read(out, 65536)
            texts[out] += more
            if not more:
                os.close(out)
                rest = _ended(running.pop(out), texts.pop(out), said, late=late)
                if rest and not late:
                    waiting.append(rest)
    return said


def _start(
    batch: list[Any], work: Callable[[Any], Said], goes_on: Callable[[Said], bool], seconds: float
) -> tuple[int, int]:
    out, into = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(into)
        return out, pid
    os.close(out)
    for piece in batch:
        signal.alarm(int(seconds))  # its end is told by the exit status
        begun = time.monotonic()
        try:
            said = work(piece)
        except BaseException:
            said = {"raised": _both_ends(traceback.format_exc())}
        said["seconds"] = round(time.monotonic() - begun, 2)
        _write(into, json.dumps(said).encode() + b"\n")
        if "raised" in said or not goes_on(said):
            break
    os._exit(0)


def _both_ends(text: str, most: int = 2000) -> str:
    """Leave out the middle of a traceback: the first error may say more than what came of it."""
    return text if len(text) <= 2 * most else f"{text[:most]}\n...\n{text[-most:]}"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _ended(process: _Running, text: bytes, said: dict[int, Said], *, late: bool) -> list[Any]:
    """Read what a process said; return the pieces that it left."""
    status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    answers = [json.loads(each) for each in text.splitlines()]
    for piece, answer in zip(process.batch, answers, strict=False):
        said[id(piece)] = answer
    rest = process.batch[len(answers) :]
    if status and rest and not late:
        seconds = round(time.monotonic() - process.begun, 2)
        said[id(rest[0])] = {"died": status, "seconds": seconds}
        rest = rest[1:]
    return rest
