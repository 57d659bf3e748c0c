"""The import of one module: what is reported when it succeeds, fails, exits or does harm."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.imports.values.import_result import ImportResult
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker import threads
from pytest_cudafork.imports.worker.importer import Importer
from pytest_cudafork.imports.worker.interpreter_state import InterpreterState
from pytest_cudafork.imports.worker.threads import WaitBudget
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.observe.observer import Observer

NUMBERS = itertools.count()
STDLIB = sys.stdlib_module_names


class Shelf:
    """A folder of modules; each is imported under a name that no other test has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.verdict = Verdict.CLEAN
        self.untold = False
        """Whether the touch that was seen last may still be being written."""

    def state(self) -> SimpleNamespace:
        """Answer as an observer does."""
        self.untold = self.verdict is Verdict.INITIALIZED
        return SimpleNamespace(verdict=self.verdict, why="")

    def settle(self) -> None:
        """Wait as an observer does whose witness writes a touch some time after it."""
        self.untold = False

    def write(self, text: str) -> str:
        name = f"cudafork_shelf_{next(NUMBERS)}"
        (self.folder / f"{name}.py").write_text(text)
        return name

    def run(
        self, text: str, *, last: bool = False, traces: bool = False, timeout: float = 2.0
    ) -> ImportResult:
        budget = WaitBudget(AuditSettings(timeout=timeout))
        importer = Importer(cast("Observer", self), None, budget, traces=traces)
        return importer.run(self.write(text), last=last)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.syspath_prepend(str(tmp_path))
    # the interpreter that is put right here is that of the test run, with its tracer and timers
    monkeypatch.setattr(InterpreterState, "restore", lambda self: None)
    monkeypatch.setattr("pytest_cudafork.process.child.flush_streams", lambda: None)
    return Shelf(tmp_path)


def test_an_import_that_succeeds(shelf: Shelf) -> None:
    result = shelf.run("VALUE = 1")
    assert (result.kind, result.error, result.reason, result.traceback) == ("imported", "", "", "")
    assert (result.state, result.changed, result.waited) == ("clean", False, 0.0)
    # where this process has threads, the importer's own look at OpenMP loads ctypes
    (own,) = [name for name in result.loaded if name.partition(".")[0] not in STDLIB]
    assert own.startswith("cudafork_shelf")
    assert result.seconds >= 0


def test_what_a_module_puts_off_is_imported_too(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``lazy import`` of Python 3.15, whose list is a stand-in here."""
    monkeypatch.setattr(sys, "lazy_modules", set(), raising=False)
    later = shelf.write("VALUE = 1")
    result = shelf.run(f"import sys\nsys.lazy_modules |= {{'{later}', 'cudafork_no_such_library'}}")
    assert (result.kind, result.reason) == ("imported", "")
    assert later in result.loaded


def test_what_the_driver_says_is_reported(shelf: Shelf) -> None:
    shelf.verdict = Verdict.INITIALIZED
    assert shelf.run("").state == "initialized"


@pytest.mark.parametrize(
    ("text", "kind", "error", "reason"),
    [
        ("raise ValueError('no  such\\nbackend')", "failed", "ValueError", "no such backend"),
        ("raise ValueError", "failed", "ValueError", "ValueError"),
        ("import no_such_library", "failed", "ModuleNotFoundError", "No module named"),
        ("raise SystemExit(3)", "exited", "SystemExit", "it calls sys.exit(3)"),
        ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise ValueError('a' * 999)", "failed", "ValueError", "aaa..."),
        ("raise ValueError('\\x1b[31m \\udcff')", "failed", "ValueError", r"\x1b[31m \udcff"),
        (
            "class Bad(Exception):\n    def __str__(self): raise TypeError\nraise Bad",
            "failed",
            "Bad",
            "(its text raises TypeError)",
        ),
    ],
)
def test_an_import_that_fails_says_why_in_one_line(
    shelf: Shelf, text: str, kind: str, error: str, reason: str
) -> None:
    result = shelf.run(text)
    assert (result.kind, result.error) == (kind, error)
    assert reason in result.reason
    assert "\n" not in result.reason
    assert len(result.reason) < 320
    assert error in result.traceback or "traceback raises" in result.traceback


def test_threads_that_run_on_are_waited_for_and_named(shelf: Shelf) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(0.2,)).start()"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threading.Thread.start", threading.Thread.start)  # is replaced meanwhile
        patch.setattr(threads, "_MOST_SECONDS", 600.0)
        result = shelf.run(text, last=True, timeout=1200.0)
    assert result.waited > 0
    assert result.running == []
    go_on = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cudafork_gate", cast("Any", SimpleNamespace(wait=go_on.wait)))
        text = "import threading, cudafork_gate as gate\nthreading.Thread(target=gate.wait).start()"
        running = shelf.run(text)
    go_on.set()
    assert [each.where for each in running.left_running] == [""], "nobody watches who starts it"
    assert running.waited == 0.0
    assert running.threads > 1


@pytest.mark.parametrize("daemon", [False, True])
def test_a_thread_that_has_touched_is_given_the_time_to_write_it(
    shelf: Shelf, daemon: bool
) -> None:
    shelf.verdict = Verdict.INITIALIZED
    text = "import threading, cudafork_gate as gate\nthreading.Thread(target=gate.wait{}).start()"
    go_on = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threading.Thread.start", threading.Thread.start)  # is replaced meanwhile
        patch.setitem(sys.modules, "cudafork_gate", cast("Any", SimpleNamespace(wait=go_on.wait)))
        result = shelf.run(text.format(", daemon=True" if daemon else ""), last=True)
    go_on.set()
    assert (result.state, shelf.untold) == ("initialized", False)


def test_what_an_import_reads_is_told_where_somebody_asks(shelf: Shelf) -> None:
    text = "import os\nos.getenv('CUDAFORK_UNKNOWN')"
    assert shelf.run(text).left is None
    left = shelf.run(text, traces=True).left
    assert left is not None
    assert [each.name for each in left.environment] == ["CUDAFORK_UNKNOWN"]
    failed = shelf.run(f"{text}\n1 / 0", traces=True)
    assert failed.left is not None, "also where it fails"


def test_a_module_that_breaks_what_the_audit_needs_is_not_observable(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any) -> bool:
        raise TypeError

    monkeypatch.setattr(InterpreterState, "has_changed", broken)
    result = shelf.run("")
    assert result.state == "not observable"
    assert result.why.endswith("has broken the interpreter: TypeError")
    assert not result.is_clean


def test_a_descendant_that_runs_on_ends_here(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    importer = Importer(cast("Observer", shelf))
    importer._own_pid = lambda: -1

    def leave(status: int) -> None:
        raise SystemExit(f"left with {status}")

    importer._leave = cast("Any", leave)
    with pytest.raises(SystemExit, match="left with 0"):
        importer.run(shelf.write("forked = True"))
    assert [name for name in sys.modules if name.startswith("cudafork_shelf")]
