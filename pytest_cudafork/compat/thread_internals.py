"""What is used of Python's threads that has no public name: to see what other threads do.

Python offers hooks for threads that are started by ``threading`` after the hook was set. A capture
has to see threads that exist already, those that are started past ``threading``, and tasks.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import thread as executors
from typing import Any

START = _thread, "start_new_thread"
"""Where code past ``threading`` starts threads (``_thread`` is documented, for all its name)."""

BOOTSTRAP = threading.Thread, "_bootstrap_inner"
"""The method in which a new thread of ``threading`` begins and ends."""

TASK = executors._WorkItem, "run"
"""The method in which a thread of an executor runs a task."""


def profiler_of_new_threads() -> Any:
    """Return what ``threading.setprofile`` has set; before Python 3.10 nothing public says it."""
    return getattr(threading, "_profile_hook", None)


def profile_all_threads() -> Callable[[Any], None] | None:
    """Return the function that sets a profiler for all threads; None before Python 3.12."""
    found: Callable[[Any], None] | None = getattr(sys, "_setprofileallthreads", None)
    return found


def profile_setter() -> Any:
    """Return the C function that sets the profiler of a thread by its state; None without.

    ``_PyEval_SetProfile(PyThreadState *, Py_tracefunc, PyObject *)``, of Python 3.9 to 3.11.
    """
    return getattr(ctypes.pythonapi, "_PyEval_SetProfile", None)
