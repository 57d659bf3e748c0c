"""The import of one module, in the process that was made for it, and the result of that.

The process is a forked child or a fresh interpreter. A module may do anything when it is imported:
exit, fork, start threads, replace ``__import__``, empty ``sys.modules``. So whatever is needed
afterwards is looked up before.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_cudafork.imports.values.import_result import ImportResult
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.worker.interpreter_state import InterpreterState, LoadedModules
from pytest_cudafork.imports.worker.put_off import load_put_off, put_off_now
from pytest_cudafork.imports.worker.threads import Threads, WaitBudget
from pytest_cudafork.imports.worker.traces import TraceWatch
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.process import child
from pytest_cudafork.process.forking.freeze_before_fork import OpenMP

if TYPE_CHECKING:
    from pytest_cudafork.imports.worker.files_read import FilesRead

_MOST_TRACEBACK = 4000
_MOST_REASON = 300
_BLIND = "not observable"


class Importer:
    """Imports one module; made before the module can do any harm.

    Args:
        observer: It watches this process.
        loaded: What is imported already; None: this looks for itself.
        budget: How long threads that it leaves running are waited for.
        traces: Whether to look what the import reads of the environment, and leaves open.
        files: What hears of the files that this process reads; None: nobody asked.

    """

    def __init__(
        self,
        observer: Observer,
        loaded: LoadedModules | None = None,
        budget: WaitBudget | None = None,
        *,
        traces: bool = False,
        files: FilesRead | None = None,
    ) -> None:
        self._observer = observer
        self._import: Callable[[str], Any] = importlib.import_module
        self._clock = time.monotonic
        self._count_threads = threading.enumerate
        self._threads = Threads()
        self._budget = budget or WaitBudget(AuditSettings())
        self._traces = TraceWatch() if traces else None
        self._files = files
        self._own_pid = os.getpid
        self._pid = os.getpid()
        self._leave: Callable[[int], NoReturn] = os._exit
        self._state = InterpreterState(loaded or LoadedModules())

    def run(self, module: str, *, last: bool = True) -> ImportResult:
        """Import it, and return what came of it.

        A descendant that a module has forked, and that runs on into this code, ends here.

        Args:
            module: Its name.
            last: Whether nothing else will be imported in this process; then what the module has
                done to the interpreter is put right before more is asked of it, and threads that
                it has left running are waited for.

        """
        if last:
            self._threads.watch()
        if self._traces is not None:
            self._traces.begin()
        if self._files is not None:
            self._files.mark()
        put_off = put_off_now()
        start = self._clock()
        error: BaseException | None = None
        try:
            self._import(module)
            load_put_off(self._import, put_off)
        except BaseException as caught:  # an import may raise anything, KeyboardInterrupt too
            error = caught
        seconds = self._clock() - start
        if self._traces is not None:
            self._traces.end()
        if self._own_pid() != self._pid:
            self._leave(0)
        try:
            return self._finish(module, error, seconds, last)
        except BaseException as broken:  # a signal handler of the module's; something it replaced
            return _result_of(
                error, seconds, why=f"{module} has broken the interpreter: {_name(broken)}"
            )

    def _finish(
        self, module: str, error: BaseException | None, seconds: float, last: bool
    ) -> ImportResult:
        changed, decides = self._state.has_changed(), self._state.decides()
        waited = 0.0
        if last:
            self._state.restore()
            most = self._budget.seconds_after(module, seconds)
            waited = self._threads.wait(most, self._budget.endless, self._has_touched)
        child.flush_streams()
        OpenMP().pause()
        state = self._observer.state()
        self._observer.settle()  # this process ends at once, and with it a thread that touches
        return _result_of(error, seconds)._replace(
            loaded=self._state.added(),
            state=state.verdict.value,
            why=state.why,
            threads=len(self._count_threads()),
            changed=changed,
            running=list(self._threads.running()),
            waited=waited,
            traces=None if self._traces is None else self._traces.found(),
            files=None if self._files is None else self._files.found(),
            decides=decides,
        )

    def _has_touched(self) -> bool:
        return self._observer.state().verdict.value == "initialized"


def _result_of(error: BaseException | None, seconds: float, why: str = "") -> ImportResult:
    """Return the result as far as it follows from the error alone."""
    failed = "exited" if isinstance(error, SystemExit) else "failed"
    return ImportResult(
        kind="imported" if error is None else failed,
        error="" if error is None else _name(error),
        reason="" if error is None else _one_line(error),
        traceback="" if error is None else _traceback(error),
        seconds=seconds,
        loaded=[],
        state=_BLIND,
        why=why,
        threads=1,
        changed=True,
        running=[],
        waited=0.0,
    )


def _name(error: BaseException) -> str:
    return type(error).__name__


def _one_line(error: BaseException) -> str:
    """Return an error in words that can be shown anywhere, and are not too many."""
    try:
        if isinstance(error, SystemExit):
            return _printable(f"it calls sys.exit({error.code!r})")
        text = str(error)
    except BaseException as broken:  # a __str__ or __repr__ of the user's
        text = f"(its text raises {_name(broken)})"
    return _printable(f"{_name(error)}: {text}" if text.strip() else _name(error))


def _printable(text: str) -> str:
    words = " ".join(text[: 2 * _MOST_REASON].split())
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
    cut = len(shown) > _MOST_REASON or len(text) > 2 * _MOST_REASON
    return f"{shown[:_MOST_REASON]}..." if cut else shown


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException as broken:  # likewise
        return f"(its traceback raises {_name(broken)})"
    # a lone surrogate could not be sent to another process, nor written to a file
    return text[-_MOST_TRACEBACK:].encode("utf-8", "backslashreplace").decode("utf-8")
