"""The verdict on one module, from what its process said, what was seen, and how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.imports.audit import verdicts
from pytest_cudafork.imports.audit.verdicts import OVER_MEMORY, judge
from pytest_cudafork.imports.values.import_result import ImportResult
from pytest_cudafork.imports.values.left_behind import RunningThread
from pytest_cudafork.imports.values.records import ImportVerdict as V
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.story.touch import Touch
from tests.support.import_results import CLEAN_IMPORT

IMPORTED = CLEAN_IMPORT._replace(running=[["server", "a.py:1", True]])
FAILED = IMPORTED._replace(kind="failed", reason="ValueError: no", traceback="Traceback: ...")
SETTINGS = AuditSettings("sm_90", without="lib", timeout=7.5)


def answer(result: ImportResult | None = IMPORTED, **known: Any) -> dict[str, Any]:
    return {
        "module": "pkg.a",
        "pid": 7,
        "status": 0,
        "timed_out": False,
        "over_memory": False,
        "told": None if result is None else result._asdict(),
        "output": "words",
        "stacks": "",
        **known,
    }


def touch(library: str = "ctypes", line: int = 1) -> Touch:
    stack = [["/src/a.py", line, "<module>", 0], ["<string>", 1, "<module>", 0]]
    return Touch.from_record({"id": "7-1", "pid": 7, "library": library, "stack": stack})


@pytest.mark.parametrize(
    ("known", "touches", "limits", "verdict", "reason"),
    [
        (answer(), 0, [], V.CLEAN, ""),
        (answer(), 1, [], V.TOUCHES, ""),
        (answer(IMPORTED._replace(state="initialized")), 0, [], V.TOUCHES, ""),
        (answer(FAILED), 0, [], V.NOT_IMPORTABLE, "ValueError: no"),
        (answer(FAILED), 1, [], V.TOUCHES_THEN_FAILS, "ValueError: no"),
        (
            answer(IMPORTED._replace(state="not observable", why="it is broken")),
            0,
            [],
            V.NOT_OBSERVABLE,
            "it is broken",
        ),
        (answer(), 0, ["no eyes", "no ears"], V.NOT_OBSERVABLE, "not seen: no eyes; no ears"),
        (answer(), 1, ["no eyes"], V.TOUCHES, ""),
        (answer(None, timed_out=True, status=-9), 0, [], V.TIMED_OUT, "longer than 7.5 s"),
        (answer(None, over_memory=True, status=-9), 0, [], V.CRASHED, OVER_MEMORY),
        (answer(None, status=-11), 0, [], V.CRASHED, "SIGSEGV"),
        (answer(None, status=-11), 1, [], V.TOUCHES_THEN_CRASHES, "during the import"),
        (answer(status=3), 0, [], V.CRASHED, "the process exited with status 3"),
    ],
)
def test_what_a_process_did_is_its_verdict(
    known: dict[str, Any], touches: int, limits: list[str], verdict: V, reason: str
) -> None:
    record = judge("pkg", SETTINGS, known, [touch()] * touches, limits)
    assert record.verdict is verdict
    assert reason in record.reason
    assert bool(record.reason) is bool(reason)
    assert (record.module, record.package, record.without) == ("pkg.a", "pkg", "lib")


def test_a_record_has_what_the_process_said() -> None:
    record = judge("pkg", SETTINGS, answer(), [])
    assert (record.seconds, record.loaded) == (0.5, ("pkg",))
    assert record.running == (RunningThread("server", "a.py:1", True),)
    assert record.output == "words"
    assert judge("pkg", SETTINGS, answer(FAILED), []).output == "words\nTraceback: ..."
    ended = answer(None, status=-6, stacks="Stack of thread 1")
    assert judge("pkg", SETTINGS, ended, []).output == "words\nStack of thread 1"


def test_of_many_touches_the_first_of_two_libraries_are_kept_without_the_start() -> None:
    touches = [touch("torch"), touch("torch", 2), touch("numba", 3), touch("cupy", 4)]
    kept = judge("pkg", SETTINGS, answer(), touches).touches
    assert [each.library for each in kept] == ["torch", "numba"]
    assert all(each.frames[-1].filename == "/src/a.py" for each in kept)


def test_other_reasons_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts.explained("no eyes") == "no eyes"
    monkeypatch.setattr(native_libs, "why_not", lambda: "They exist for Linux only.")
    assert verdicts.explained("They exist for Linux only.") == "They exist for Linux only."
    monkeypatch.setattr(native_libs, "why_not", lambda: "'x' was not built. Install it")
    monkeypatch.setattr(verdicts, "_checkout", lambda: Path("/src"))
    assert verdicts.explained("sm_90: 'x' was not built. Install it") == (
        "sm_90: 'x' was not built. This is a checkout: with a C compiler, run `python setup.py "
        "build_native --inplace` in /src"
    )
