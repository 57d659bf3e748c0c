"""The verdict on one module, from what its process reported, what was seen, and how it ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pytest_cudafork.imports.values.import_result import ImportResult
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.process import exit_status

_ENDED = (ImportVerdict.TIMED_OUT, ImportVerdict.CRASHED, ImportVerdict.TOUCHES_THEN_CRASHES)
OVER_MEMORY = "its import was ended: it held more memory than it may"
_NOT_BUILT = " was not built."


def judge(
    package: str,
    settings: AuditSettings,
    answer: dict[str, Any],
    touches: Sequence[Touch],
    limits: Iterable[str] = (),
) -> ImportRecord:
    """Return the record of one module.

    Args:
        package: What was asked for.
        settings: With which it was imported.
        answer: What is known of its process: ``Job.finish`` or ``AuditProcess.answer_of``.
        touches: Those of the process, in order.
        limits: What could not have been seen in it, in words.

    """
    plain = answer["told"]
    result = None if plain is None else ImportResult(**plain)
    verdict, reason = _verdict(settings, answer, result, bool(touches), limits)
    output = answer["output"]
    if verdict in _ENDED and answer["stacks"]:
        output = f"{output}\n{answer['stacks']}".strip()
    elif result is not None and result.traceback:
        output = f"{output}\n{result.traceback}".strip()
    return ImportRecord(
        module=answer["module"],
        package=package,
        verdict=verdict,
        without=settings.without,
        touches=_first_of_each_library(touches),
        reason=reason,
        output=output,
        seconds=0.0 if result is None else result.seconds,
        loaded=() if result is None else tuple(result.loaded),
        running=() if result is None else result.left_running,
        traces=None if result is None else result.left,
        files=None if result is None else result.read,
    )


def _verdict(
    settings: AuditSettings,
    answer: dict[str, Any],
    result: ImportResult | None,
    touched: bool,
    limits: Iterable[str],
) -> tuple[ImportVerdict, str]:
    if answer["timed_out"]:
        limit = settings.limit_of(answer["module"])
        return ImportVerdict.TIMED_OUT, f"its import took longer than {limit:g} s"
    if answer["over_memory"]:
        return ImportVerdict.CRASHED, OVER_MEMORY
    if result is None or answer["status"] != 0:
        verdict = ImportVerdict.TOUCHES_THEN_CRASHES if touched else ImportVerdict.CRASHED
        return verdict, f"the process {exit_status.describe(answer['status'])} during the import"
    touched = touched or result.state == "initialized"
    if result.kind != "imported":
        if touched:
            return ImportVerdict.TOUCHES_THEN_FAILS, result.reason
        return ImportVerdict.NOT_IMPORTABLE, result.reason
    if touched:
        return ImportVerdict.TOUCHES, ""
    if result.state == "not observable":
        return ImportVerdict.NOT_OBSERVABLE, result.why
    unseen = "; ".join(map(explained, limits))
    if unseen:
        return ImportVerdict.NOT_OBSERVABLE, f"not seen: {unseen}"
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


def explained(reason: str) -> str:
    """Return the reason why nothing could be seen, with what helps in a checkout.

    In a checkout the native libraries are built in place. To install the package from an index
    again, as the reason says, would leave the checkout as it is.

    Args:
        reason: What a process of the audit has said.

    """
    missing, words, _ = native_libs.why_not().partition(_NOT_BUILT)
    folder = _checkout() if words and f"{missing}{words}" in reason else None
    if folder is None:
        return reason
    start = reason.partition(missing)[0]
    return (
        f"{start}{missing}{words} This is a checkout: with a C compiler, run `python setup.py "
        f"build_native --inplace` in {folder}"
    )


def _checkout() -> Path | None:
    """Return the folder of the checkout in which this package lies; None if it was installed."""
    folder = Path(__file__).resolve().parents[3]  # above the package
    try:
        text = (folder / "setup.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return folder if "build_native" in text else None
