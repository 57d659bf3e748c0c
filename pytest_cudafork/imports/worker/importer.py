"""Owns the import of one module in the process that was made for it, and what is told of it.

Runs in a child of the template, or in a fresh interpreter. It does not know which, nor what the
verdict will be. A module may do anything when it is imported: exit, fork, start threads, replace
``__import__``, empty ``sys.modules``. So whatever is needed afterwards is at hand before.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from pytest_cudafork.imports.values.records import RunningThread
from pytest_cudafork.imports.values.settings import DEFAULT_TIMEOUT
from pytest_cudafork.imports.worker.interpreter_state import Footing, Loaded
from pytest_cudafork.imports.worker.threads import Patience, Threads
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.process import child
from pytest_cudafork.process.template_memory import OpenMP

_MOST_TRACEBACK = 4000
_MOST_REASON = 300
_BLIND = "not observable"


class Told(NamedTuple):
    """What is known of an import when it is over.

    ``kind`` is "imported", "failed" or "exited"; ``error`` the exception's class name, ``reason``
    its one line, ``missing`` the module that a ``ModuleNotFoundError`` missed; ``state`` and
    ``why`` the driver's word on this process; ``threads`` how many Python has (those of libraries
    know how to be forked); ``moved`` whether the interpreter itself is not as it was; ``running``
    the threads that it has left running, as they are in a ``RunningThread``, and ``waited`` how
    long they were waited for.
    """

    kind: str
    error: str
    reason: str
    missing: str
    traceback: str
    seconds: float
    loaded: list[str]
    state: str
    why: str
    threads: int
    moved: bool
    running: list[Any]
    waited: float

    @property
    def left_running(self) -> tuple[RunningThread, ...]:
        """The threads that it has left running."""
        return tuple(RunningThread(*each) for each in self.running)

    @property
    def is_clean(self) -> bool:
        """Whether the process can serve as a template for others."""
        is_clean = self.kind == "imported" and self.state == "clean"
        return is_clean and self.threads == 1 and not self.moved


class Importer:
    """Imports one module; made before the module can do any harm.

    Args:
        observer: It watches this process.
        loaded: What is imported already; None: this looks for itself.
        patience: How long threads that it leaves running are waited for.

    """

    def __init__(
        self,
        observer: Observer,
        loaded: Loaded | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._observer = observer
        self._import: Callable[[str], Any] = importlib.import_module
        self._clock = time.monotonic
        self._count_threads = threading.enumerate
        self._threads = Threads()
        self._patience = patience or Patience(DEFAULT_TIMEOUT)
        self._own_pid = os.getpid
        self._pid = os.getpid()
        self._leave: Callable[[int], NoReturn] = os._exit
        self._footing = Footing(loaded or Loaded())

    def run(self, module: str, *, last: bool = True) -> Told:
        """Import it.

        A descendant that a module has forked, and that runs on into this code, ends here.

        Args:
            module: Its name.
            last: Whether nothing else will be imported in this process; then what the module has
                done to the interpreter is put right before more is asked of it, and threads that
                it has left running are waited for.

        """
        if last:
            self._threads.watch()
        start = self._clock()
        error: BaseException | None = None
        try:
            self._import(module)
        except BaseException as caught:  # an import may raise anything, KeyboardInterrupt too
            error = caught
        seconds = self._clock() - start
        if self._own_pid() != self._pid:
            self._leave(0)
        try:
            return self._tell(error, seconds, last)
        except BaseException as broken:  # a signal handler of the module's; something it replaced
            return _told(
                error, seconds, why=f"{module} has broken the interpreter: {_name(broken)}"
            )

    def _tell(self, error: BaseException | None, seconds: float, last: bool) -> Told:
        moved = self._footing.has_moved()
        waited = 0.0
        if last:
            self._footing.put_back()
            seconds_left = self._patience.seconds(seconds)
            waited = self._threads.wait(seconds_left, self._patience.hopeless, self._has_touched)
        child.flush_streams()
        OpenMP().pause()
        state = self._observer.state()
        return _told(error, seconds)._replace(
            loaded=self._footing.added(),
            state=state.verdict.value,
            why=state.why,
            threads=len(self._count_threads()),
            moved=moved,
            running=list(self._threads.running()),
            waited=waited,
        )

    def _has_touched(self) -> bool:
        return self._observer.state().verdict.value == "initialized"


def _told(error: BaseException | None, seconds: float, why: str = "") -> Told:
    """Return what the error alone tells."""
    failed = "exited" if isinstance(error, SystemExit) else "failed"
    return Told(
        kind="imported" if error is None else failed,
        error="" if error is None else _name(error),
        reason="" if error is None else _one_line(error),
        missing=_missing(error),
        traceback="" if error is None else _traceback(error),
        seconds=seconds,
        loaded=[],
        state=_BLIND,
        why=why,
        threads=1,
        moved=True,
        running=[],
        waited=0.0,
    )


def _name(error: BaseException) -> str:
    return type(error).__name__


def _missing(error: BaseException | None) -> str:
    name = error.name if isinstance(error, ModuleNotFoundError) else ""
    return name if isinstance(name, str) else ""


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


def encode(told: Told) -> bytes:
    """Return it as one line of JSON."""
    return _dumps(told._asdict()).encode("ascii")


_dumps = json.dumps  # before a module replaces it


def decode(data: bytes) -> Told | None:
    """Read what ``encode`` made; None if it is nothing of the kind."""
    try:
        return Told(**json.loads(data))
    except (ValueError, TypeError):
        return None
