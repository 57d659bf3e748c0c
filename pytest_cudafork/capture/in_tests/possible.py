"""Whether this process can capture a graph at all, so that what comes before one is of interest.

Most sessions cannot: there is no driver, and nothing has asked for the software graph. What tests
compute is not looked at there, which costs nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable

import pytest

from pytest_cudafork.observe.base.after_import import Required, after_import
from pytest_cudafork.settings.devices import ABSENT
from pytest_cudafork.settings.options import Settings
from pytest_cudafork.settings.real_driver import has_real_driver
from pytest_cudafork.without_torch import NO_TORCH, torch_is_missing

FIXTURE = "graph_backend"
"""The fixture that imports the software graph when a test is set up."""
_SOFTWARE = (
    "pytest_cudafork.capture.software.backend",
    "pytest_cudafork.capture.stand_ins.capturing.graphs",
)
"""Modules without which there is no software graph."""


def captures_are_possible() -> bool:
    """Whether a test that runs now may capture a graph with what is imported and installed."""
    if has_real_driver() or any(name in sys.modules for name in _SOFTWARE):
        return True
    version = getattr(sys.modules.get("torch"), "version", None)
    return bool(getattr(version, "hip", None))  # whose driver has files of other names


def options_to_add(settings: Settings) -> str:
    """Say which options let code for a GPU capture here, "" if none is missing.

    Without torch none does, which is said instead.
    """
    if torch_is_missing():
        return f"{NO_TORCH}, so there is nothing to look at"
    if has_real_driver() or settings.graphs == "cuda":
        return ""
    options = [] if settings.graphs == "software" else ["--cuda-fork-graphs=software"]
    shows_none = not settings.active or settings.device.face == ABSENT
    shows = "--cuda-fork-check --cuda-fork-device=phantom:sm_90 if tests use the device 'cuda'"
    options += [shows] if shows_none else []
    return f"no NVIDIA driver here: add {', and '.join(options)}" if options else ""


def any_asks_for_graphs(items: Iterable[pytest.Item]) -> bool:
    """Whether a test asks for the software graph by a fixture; fixtures before it count, too."""
    return any(FIXTURE in getattr(item, "fixturenames", ()) for item in items)


def after_captures_are_possible(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back once, when a module is imported that makes captures possible, until the undo."""
    waiting = [callback]

    def imported(module: object) -> None:
        if waiting:
            waiting.pop()()

    undo = contextlib.ExitStack()
    for name in _SOFTWARE:
        undo.callback(after_import(name, Required(imported)))
    return undo.close
