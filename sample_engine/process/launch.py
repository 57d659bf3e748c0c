"""The moment in which the core's process is made, and what must not happen in it.

Which method is the right one is decided in ``start_method``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from sample_engine.config import WorkerMethod
from sample_engine.errors import ConfigError
from sample_engine.process.start_method import get_mp_context

__all__ = ["launch"]

_OPENMP = ("libgomp", "libomp", "libiomp5")
_PAUSE_SOFT = 1

# What a start changes for a moment is the whole process's: its main module, filters of warnings.
# Two threads at once would each put back what the other one had changed.
_one_at_a_time = threading.RLock()


def _in_forked_child() -> None:
    """Forget a thread that was starting a core: it is not here to let go of the lock."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


os.register_at_fork(after_in_child=_in_forked_child)


def launch(
    method: WorkerMethod, target: Callable[..., None], arguments: tuple[Any, ...]
) -> BaseProcess:
    """Start a process that runs ``target``; it is daemonic, and ends with this one at the latest.

    The child begins with SIGINT blocked (by fork and spawn) and has to settle what it wants. Raises
    :class:`ConfigError` for arguments that cannot be handed to it.
    """
    context: Any = get_mp_context(method)
    process: BaseProcess = context.Process(
        target=target, args=arguments, name="sample_engine core", daemon=True
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_at_a_time)
        if method is WorkerMethod.FORK:
            _pause_openmp()
            stack.enter_context(_without_fork_warning())
        else:
            stack.enter_context(_without_main())
        if method is not WorkerMethod.FORKSERVER:  # whose server would keep the mask for everybody
            stack.enter_context(_interrupts_blocked(method))
        try:
            process.start()
        except (
            pickle.PicklingError,
            AttributeError,
            TypeError,
        ) as error:  # pickle raises all three
            if method is WorkerMethod.FORK:
                raise
            raise ConfigError(
                "What the engine core is to be made with (graph_execution, core_factory) cannot "
                f"be handed to a process that is started by {method.value!r}: {error}. Its class "
                "or function has to be in a module, not in the program itself or in a function, "
                "and what it holds has to be picklable; or use worker_method='inproc' or 'fork'."
            ) from error
    return process


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Do not let the child import the program's main module a second time.

    ``multiprocessing`` does so in every child that is not forked: a script without
    ``if __name__ == "__main__"`` would start itself again, and one that is read from stdin cannot
    be imported. The core needs nothing of it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _interrupts_blocked(method: WorkerMethod) -> Iterator[None]:
    """Ctrl-C goes to the whole terminal: keep it from a child that cannot ignore it yet.

    A mask is inherited through fork and exec. Here the signal only waits.
    """
    if method is WorkerMethod.SPAWN:
        resource_tracker.ensure_running()  # starting it would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        yield
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:  # by the handler of another signal
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise


@contextlib.contextmanager
def _without_fork_warning() -> Iterator[None]:
    """Silence Python's warning (3.12 and later) about a fork in a process with threads.

    Whoever came here has looked: Python's own threads are among the reasons of the decision, idle
    OpenMP pools have been ended, and OpenBLAS settles its own at a fork.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*multi-threaded.*fork", DeprecationWarning)
        yield


def _pause_openmp() -> None:
    """End the idle threads of this thread's OpenMP pools; they start again when they are needed.

    A child that is forked beside such a pool waits for ever in its first parallel operation, for
    threads that it does not have. torch's operators on a CPU run on such a pool.
    """
    for path in _mapped(_OPENMP):
        # It may be older than OpenMP 5.0, which brought the function.
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            library.omp_pause_resource_all(_PAUSE_SOFT)


def _mapped(names: tuple[str, ...]) -> list[str]:
    """Paths of the libraries of such a name that are loaded here."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            _, slash, rest = line.rstrip("\n").partition("/")
            name = rest.rpartition("/")[2]
            if slash and name.startswith(names) and ".so" in name:
                found[slash + rest] = None
    return list(found)
