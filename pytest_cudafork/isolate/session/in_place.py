"""What an isolated test finds where its body runs in this process: with ``--pdb``, or in its child.

Its variables are set here as long as it runs, where it is not isolated; and a test that is
decorated with ``isolated`` runs in place, for its process is seen to already. What a marked class
without tests does runs in place, too, and that is told.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.errors import CudaForkWarning
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import ISOLATED, marks_of


class InPlace:
    """The plugin object."""

    def __init__(self, runs_here: Callable[[pytest.Item], bool]) -> None:
        """``runs_here`` says whether a marked test has no process of its own."""
        self._runs_here = runs_here

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector, name: str, obj: object
    ) -> Generator[None, object, object]:
        """Tell of a class that is marked in vain: nobody collects it."""
        result = yield
        if result is None and issubclass(type(obj), type) and _is_marked_in_vain(obj, name):
            collector.warn(
                CudaForkWarning(
                    f"the class {name} is marked {ISOLATED} and is no test class: what is called "
                    "of it runs in the process of its caller. Decorate its methods, or the "
                    "function that uses it"
                )
            )
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Set the variables that the test's process would have."""
        env = marks_of(item).env
        if not env or not self._runs_here(item):
            return (yield)
        with contextlib.ExitStack() as undo:
            for name, text in env:
                environment.set_variable(undo, name, text)
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Let the function run in place."""
        __tracebackhide__ = True
        module = sys.modules.get("pytest_cudafork.call.isolated")
        if module is None or not marks_of(item).isolated:
            return (yield)
        with module.run_here(getattr(item, "obj", None)):
            return (yield)


def _is_marked_in_vain(cls: Any, name: str) -> bool:
    """Whether a class that is not collected under a name has a mark of which nobody makes use."""
    own = vars(cls)
    marks = own.get("pytestmark", ())
    marked = any(
        getattr(mark, "name", "") == ISOLATED
        for mark in (marks if isinstance(marks, list | tuple) else [marks])
    )
    if not marked or "__test__" in own or type.__subclasses__(cls):
        return False  # subclasses have its marks
    there = vars(sys.modules.get(cls.__module__, cls))
    return [key for key, one in there.items() if one is cls] == [name]
