"""Owns the import of one module in the process that was made for it, and what is told of it.

Runs in a child of the template, or in a fresh interpreter. It does not know which, nor what the
verdict will be. A module may do anything when it is imported: exit, fork, start threads, replace
``__import__``, empty ``sys.modules``. So whatever is needed afterwards is at hand before.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_cudafork.isolate.template_memory import OpenMP
from pytest_cudafork.observe.observer import Observer

_MOST_TRACEBACK = 4000


class Told(NamedTuple):
    """What is known of an import when it is over.

    ``kind`` is "imported", "failed" or "exited"; ``error`` the exception's class name, ``reason``
    its one line, ``missing`` the module that a ``ModuleNotFoundError`` missed; ``state`` and
    ``why`` the driver's word on this process; ``threads`` how many Python has. Those of libraries know
    how to be forked.
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

    @property
    def is_clean(self) -> bool:
        """Whether the process can serve as a template for others."""
        return self.kind == "imported" and self.state == "clean" and self.threads == 1


class Importer:
    """Imports one module; made before the module can do any harm."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._pid = os.getpid()
        self._modules = sys.modules
        self._import: Callable[[str], Any] = importlib.import_module
        self._clock = time.monotonic
        self._threads = threading.enumerate

    def run(self, module: str) -> Told:
        """Import it.

        A descendant that a module has forked, and that runs on into this code, ends here.
        """
        before = set(self._modules)
        start = self._clock()
        kind, error = "imported", None
        try:
            self._import(module)
        except SystemExit as caught:
            kind, error = "exited", caught
        except BaseException as caught:  # an import may raise anything, KeyboardInterrupt too
            kind, error = "failed", caught
        if os.getpid() != self._pid:
            os._exit(0)
        seconds = self._clock() - start
        loaded = [name for name in list(self._modules) if name not in before]
        OpenMP().pause()
        state = self._observer.state()
        return Told(
            kind=kind,
            error="" if error is None else type(error).__name__,
            reason="" if error is None else _one_line(error),
            missing=str(getattr(error, "name", "") or "") if _is_missing(error) else "",
            traceback="" if error is None else _traceback(error),
            seconds=seconds,
            loaded=[name for name in loaded if isinstance(name, str)],
            state=state.verdict.value,
            why=state.why,
            threads=len(self._threads()),
        )


def _is_missing(error: BaseException | None) -> bool:
    return isinstance(error, ModuleNotFoundError)


def _one_line(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception as broken:  # a __str__ of the user's
        text = f"(its text raises {type(broken).__name__})"
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as broken:  # likewise
        return f"(its traceback raises {type(broken).__name__})"
    return text[-_MOST_TRACEBACK:]


def encode(told: Told) -> bytes:
    """Return it as one line of JSON."""
    return json.dumps(told._asdict()).encode("ascii")


def decode(data: bytes) -> Told | None:
    """Read what ``encode`` made; None if it is nothing of the kind."""
    try:
        return Told(**json.loads(data))
    except (ValueError, TypeError):
        return None
