"""Owns the verdict on one module: what was told, what was seen, how the process ended. Pure.

It does not know how the module was imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.imports.worker.importer import Told
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.process import exit_status

_ENDED = (ImportVerdict.TIMED_OUT, ImportVerdict.CRASHED, ImportVerdict.TOUCHES_THEN_CRASHES)
OVER_MEMORY = "its import was ended: it held more memory than it may"


def judge(
    package: str,
    without: str,
    answer: dict[str, Any],
    touches: Sequence[Touch],
    limits: Sequence[str] = (),
) -> ImportRecord:
    """Return the record of one module.

    Args:
        package: What was asked for.
        without: The library that was hidden, or "".
        answer: What ``Job.finish`` returned.
        touches: Those of the process, in order.
        limits: What could not have been seen in it, in words.

    """
    told = None if answer["told"] is None else Told(**answer["told"])
    verdict, reason = _verdict(answer, told, bool(touches), limits)
    output = answer["output"]
    if verdict in _ENDED and answer["stacks"]:
        output = f"{output}\n{answer['stacks']}".strip()
    elif told is not None and told.traceback:
        output = f"{output}\n{told.traceback}".strip()
    return ImportRecord(
        module=answer["module"],
        package=package,
        verdict=verdict,
        without=without,
        touches=_first_of_each_library(touches),
        reason=reason,
        output=output,
        seconds=0.0 if told is None else told.seconds,
        loaded=() if told is None else tuple(told.loaded),
        running=() if told is None else told.left_running,
    )


def _verdict(
    answer: dict[str, Any], told: Told | None, touched: bool, limits: Sequence[str]
) -> tuple[ImportVerdict, str]:
    if answer["timed_out"]:
        return ImportVerdict.TIMED_OUT, f"its import took longer than {answer['timeout']:g} s"
    if answer["over_memory"]:
        return ImportVerdict.CRASHED, OVER_MEMORY
    if told is None or answer["status"] != 0:
        verdict = ImportVerdict.TOUCHES_THEN_CRASHES if touched else ImportVerdict.CRASHED
        return verdict, f"the process {exit_status.describe(answer['status'])} during the import"
    touched = touched or told.state == "initialized"
    if told.kind != "imported":
        if touched:
            return ImportVerdict.TOUCHES_THEN_FAILS, told.reason
        return ImportVerdict.NOT_IMPORTABLE, told.reason
    if touched:
        return ImportVerdict.TOUCHES, ""
    if told.state == "not observable":
        return ImportVerdict.NOT_OBSERVABLE, told.why
    if limits:
        return ImportVerdict.NOT_OBSERVABLE, f"not seen: {'; '.join(limits)}"
    return ImportVerdict.CLEAN, ""


def _first_of_each_library(touches: Sequence[Touch]) -> tuple[Touch, ...]:
    """Return the first touch and, if the caller's library is another one, the next such."""
    if not touches:
        return ()
    first = touches[0]
    others = [touch for touch in touches[1:] if touch.library != first.library]
    return tuple(map(_without_start, (first, *others[:1])))


def _without_start(touch: Touch) -> Touch:
    """Leave out the line that began the process."""
    if touch.frames and touch.frames[-1].filename == "<string>":
        return dataclasses.replace(touch, frames=touch.frames[:-1])
    return touch
