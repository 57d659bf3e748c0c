"""What the plugin uses of Python's standard library that has no public name.

A forked child has to forget what its parent registered for its own end, and the audit hides modules
from the import system. Python offers neither; each function says which names it needs instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pytest_cudafork.compat.unpatched import faulthandler, os, time

# -- libraries and stacks --------------------------------------------------------------------------


def mapped_library(name: str) -> Any:
    """Return a library that is mapped into this process (``_ctypes.dlopen``).

    ``ctypes.CDLL(name)`` asks ``os.fspath`` from Python 3.14 on, which a test may have replaced.

    Raises:
        OSError: It is not mapped.

    """
    import _ctypes

    from pytest_cudafork.compat.unpatched import ctypes

    mode = os.RTLD_NOW | os.RTLD_NOLOAD
    return ctypes.CDLL(None, handle=_ctypes.dlopen(name, mode))


def in_main_interpreter() -> bool:
    """Whether the caller runs in the main interpreter of its process, not in a subinterpreter."""
    from pytest_cudafork.compat.unpatched import ctypes

    python = ctypes.PyDLL(None)
    names = "PyInterpreterState_Get", "PyInterpreterState_Main"
    if not all(hasattr(python, name) for name in names):  # the program keeps them to itself
        return True
    functions = [getattr(python, name) for name in names]
    for function in functions:
        function.restype = ctypes.c_void_p
    here, main = (function() for function in functions)
    return bool(here == main)


def write_python_stacks(fd: int) -> None:
    """Let faulthandler write the Python stacks of all threads on a fatal signal.

    From Python 3.14 on it adds the stack of C functions, which says nothing here and is longer than
    the end of the output that is shown.
    """
    if sys.version_info >= (3, 14):
        faulthandler.enable(file=fd, all_threads=True, c_stack=False)
    else:
        faulthandler.enable(file=fd, all_threads=True)


# -- warnings ------------------------------------------------------------------------------------

Shows = tuple[Any, Any]
"""What shows or records warnings in this process: ``showwarning``, and what is below it."""


def what_shows_warnings() -> Shows:
    """Return what shows warnings, or records them: ``warnings._showwarnmsg_impl`` is the latter.

    ``catch_warnings(record=True)`` puts the ``append`` of its list there.
    """
    return warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)


@contextlib.contextmanager
def warnings_shown_by(shows: Shows) -> Iterator[None]:
    """Let warnings be shown, or recorded, by this meanwhile; filters stay as they are."""
    with warnings.catch_warnings():  # gives back both
        warnings.showwarning = shows[0]
        if shows[1] is not None:
            warnings._showwarnmsg_impl = shows[1]  # type: ignore[attr-defined]
        yield


# -- the end of a process ------------------------------------------------------------------------


_FINALIZE: Any = weakref.finalize
"""Taken now: a test may put something else in its place."""
_CALL_FINALIZERS: Callable[[], None] = _FINALIZE._exitfunc


def clear_exit_functions() -> None:
    """Drop all functions of ``atexit``, without calling them: ``atexit._clear``.

    ``weakref.finalize`` registers the function that calls its finalizers (``_exitfunc``) once in a
    process, and notes that it has (``_registered_with_atexit``). It forgets that here, or nothing
    would call those that are made from now on, as a ``tempfile.TemporaryDirectory`` makes one.
    Those that are there are not called at the end: their objects are the parent's. They have
    smaller numbers (``_index_iter``), and are looked for only if others are to be called: torch
    makes more than a hundred, and a forked child would copy the page of memory of each.
    """
    atexit._clear()
    call = functools.partial(_call_finalizers, next(_FINALIZE._index_iter))
    _FINALIZE._exitfunc = staticmethod(call)
    _FINALIZE._registered_with_atexit = False


def _call_finalizers(first: int) -> None:
    """Call the finalizers that are left, with this number or a greater one (``_registry``)."""
    for info in list(_FINALIZE._registry.values()):
        if info.index < first:
            info.atexit = False
    _CALL_FINALIZERS()


def let_logging_end() -> None:
    """Have handlers of ``logging`` that are made from now on write what they keep, at the end.

    ``logging`` registers ``shutdown`` once, when it is imported. Handlers that are there already
    (``_handlerList``) are the parent's, as is what they keep.
    """
    logging: Any = sys.modules.get("logging")
    if not hasattr(logging, "_handlerList"):  # not imported, or something else is in its place
        return
    theirs = {id(each): each for each in logging._handlerList}  # kept, so that no other is there

    def shut_down() -> None:
        logging.shutdown([each for each in logging._handlerList if id(each) not in theirs])

    atexit.register(shut_down)


def run_exit_functions() -> None:
    """Call the functions of ``atexit`` now, as the end of an interpreter does.

    ``atexit._run_exitfuncs``: a process that ends by ``os._exit`` calls none by itself.
    """
    atexit._run_exitfuncs()


def tell_of_ignored_errors() -> None:
    """Let errors in finalizers, threads and exit functions be written to stderr, as Python does.

    pytest keeps what it hears of them for its own session (``_pytest.unraisableexception``,
    ``_pytest.threadexception``), and in a forked process nobody asks for that.
    """
    hooks: Any = ((sys, "unraisablehook"), (threading, "excepthook"))
    for module, name in hooks:
        hook = getattr(module, name)
        if str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith("_pytest."):
            setattr(module, name, getattr(module, f"__{name}__"))


def show_log() -> None:
    """Let what is logged be written to stderr, as where nobody has set up logging.

    That is, where pytest alone hears of it: its handlers (``_pytest.logging``) keep it for reports
    of the process that this one was forked from.
    """
    logging: Any = sys.modules.get("logging")
    if not getattr(logging, "lastResort", None):  # not imported, or the program wants silence
        return
    root = logging.getLogger()
    if root.handlers and all(type(one).__module__ == "_pytest.logging" for one in root.handlers):
        root.addHandler(logging.lastResort)


def wait_for_threads() -> None:
    """Wait for threads as the end of an interpreter does: ``threading._shutdown``.

    Pools of ``concurrent.futures`` are told to end before, which nothing public does.
    ``multiprocessing`` calls it in its own children.
    """
    shutdown: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]
    shutdown()


def end_process_pools() -> None:
    """Let pools of ``concurrent.futures`` end their processes, as the end of an interpreter does.

    ``concurrent.futures.process._python_exit``, which ``threading`` calls before the functions of
    ``atexit``: among these ``multiprocessing`` would wait for the processes without end.
    """
    module: Any = sys.modules.get("concurrent.futures.process")
    if module is not None:
        module._python_exit()


def forget_multiprocessing_children() -> None:
    """Let ``multiprocessing`` know of no children and no finalizers, where it was imported.

    ``multiprocessing.process._children`` and ``multiprocessing.util._finalizer_registry``: as its
    own bootstrap of a child does. Its exit function (``util._exit_function``) is registered again,
    with a bound for what it waits for.
    The fork server of the parent is forgotten as well: ``multiprocessing`` would wait for it as for
    a child of this process, and fail. So are the parent's pools of ``concurrent.futures``
    (``process._threads_wakeups``).
    """
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children = set()
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        atexit.register(_exit_function, util, process)
    pools: Any = sys.modules.get("concurrent.futures.process")
    if pools is not None:
        pools._threads_wakeups.clear()
    if forkserver_pid() is not None:
        _forget_forkserver()


_JOIN_SECONDS = 20.0


def _exit_function(util: Any, process: Any) -> None:
    """Do what ``multiprocessing`` does at the end of a process, and wait for no child for ever.

    A library may end its processes by an exit function of its own. Where it was imported before
    the fork, that was registered for the end of the parent, and is not called here. Those that
    still run then are nobody's, and are ended with all else that is left.
    """
    util._run_finalizers(0)
    for child in process.active_children():
        if child.daemon:
            child.terminate()
    until = time.monotonic() + _JOIN_SECONDS
    children = [child for child in process.active_children() if not child.daemon]
    for child in children:
        child.join(max(0.0, until - time.monotonic()))
    left = {child for child in children if child.is_alive()}
    if left:
        process._children.difference_update(left)
        names = ", ".join(sorted(child.name for child in left))
        text = (
            f"pytest-cudafork: {names} still ran {_JOIN_SECONDS:g} s after the work of a forked "
            "process, which waits for them at its end as Python does, and are ended with it. If "
            "their library ends them when Python ends (atexit): what it registered before the fork "
            "does not run here; end them in the test, or use the method spawn.\n"
        )
        with contextlib.suppress(Exception):  # closed, or replaced by the test
            sys.stderr.write(text)
    util._exit_function()


class ResourceTracker(NamedTuple):
    """The process that removes shared memory which nobody has removed.

    Attributes:
        fd: The end of a pipe here; the tracker ends when nobody holds one.
        pid: Its process.

    """

    fd: int
    pid: int


def resource_tracker() -> ResourceTracker | None:
    """Return ``multiprocessing``'s resource tracker as this process knows it; None without one.

    ``multiprocessing.resource_tracker._resource_tracker`` with its ``_fd`` and ``_pid``.
    """
    module: Any = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    fd, pid = getattr(tracker, "_fd", None), getattr(tracker, "_pid", None)
    return None if fd is None or pid is None else ResourceTracker(fd, pid)


# -- the environment -----------------------------------------------------------------------------


def variables_in_bytes(environ: Any) -> dict[bytes, bytes]:
    """Return ``_data`` of ``os.environ``: the variables as the kernel keeps them. Do not change it.

    ``os.environb`` decodes and encodes each name again.
    """
    data: dict[bytes, bytes] = environ._data
    return data


# -- the start of a process ----------------------------------------------------------------------


def start_method_of(process: Any) -> str:
    """Return by which method a ``multiprocessing.Process`` that is about to start will be.

    ``_start_method`` is set in the process classes of the contexts "fork", "spawn" and
    "forkserver", and None in that of the default context, which then decides.
    """
    import multiprocessing

    method = getattr(type(process), "_start_method", None)
    return method if isinstance(method, str) else str(multiprocessing.get_start_method())


def interpreter_flags() -> list[str]:
    """Return the options (-W, -X, -O, ...) this interpreter was started with.

    ``subprocess._args_from_interpreter_flags``, on which ``multiprocessing`` and ``unittest`` rely
    too.
    """
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def is_unittest(kind: object) -> bool:
    """Whether a class is a ``unittest.TestCase``; nothing is imported for it."""
    return any(base.__module__ == "unittest.case" for base in getattr(kind, "__mro__", ()))


def test_of_unittest(case: object) -> str:
    """Return the name of the method that a ``unittest.TestCase`` runs as its test; "" for none.

    ``TestCase._testMethodName``: ``id()`` may say anything else.
    """
    return str(getattr(case, "_testMethodName", ""))


def apart_from_its_run(case: Any) -> Any:
    """Return a copy of a ``unittest.TestCase`` without what the process that runs it has for that.

    ``_outcome`` has the runner's result with its streams, ``_cleanups`` what ``setUp`` wants done
    there, and what begins with ``_asyncio`` is the event loop of an ``IsolatedAsyncioTestCase``.
    """
    import copy

    copied = copy.copy(case)
    loop = {name: None for name in vars(case) if name.startswith("_asyncio")}
    vars(copied).update(loop, _outcome=None, _cleanups=[])
    return copied


def send_with_preparation(spawn: Any, name: str, bearer: object) -> Callable[[], None]:
    """Let every child that ``multiprocessing`` does not fork unpickle an object before its work.

    ``multiprocessing.spawn.get_preparation_data`` returns what "spawn" and "forkserver" send first;
    a child leaves alone what it does not know in it. Of two of one name the later one is sent.
    Returns what undoes it.

    Args:
        spawn: The module ``multiprocessing.spawn``.
        name: The name of the object in what is sent.
        bearer: The object.

    """
    former = spawn.get_preparation_data

    def get_preparation_data(process: str) -> dict[str, Any]:
        # before all else, and not what a former call sends by this name
        found: dict[str, Any] = {name: bearer} | former(process) | {name: bearer}
        return found

    def undo() -> None:
        if spawn.get_preparation_data is get_preparation_data:
            spawn.get_preparation_data = former

    spawn.get_preparation_data = get_preparation_data
    return undo


def forkserver_pid() -> int | None:
    """Return the process of ``multiprocessing``'s fork server (``_forkserver``); None without."""
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    pid: int | None = getattr(server, "_forkserver_pid", None)
    return pid


def end_forkserver_unless(pid: int | None) -> None:
    """End ``multiprocessing``'s fork server unless it is that process; the next use starts one.

    ``_forkserver_alive_fd``, ``_forkserver_address`` and ``_forkserver_pid`` of the object that has
    it. Its own ``_stop`` would wait for all who hold the end of a pipe, be they only forked.
    """
    import os
    import signal

    now = forkserver_pid()
    if now is None or now == pid:
        return
    server: Any = sys.modules["multiprocessing.forkserver"]._forkserver
    with contextlib.suppress(OSError):  # it is gone, or another process's child
        os.kill(now, signal.SIGKILL)
        os.waitpid(now, 0)
    address = server._forkserver_address
    if isinstance(address, str) and not address.startswith("\0"):
        with contextlib.suppress(OSError):
            os.unlink(address)
    _forget_forkserver()


def _forget_forkserver() -> None:
    """Let the next use start a fork server, with the modules that it was to have.

    ``ForkServer.__init__`` and ``_preload_modules``: all else that the object knows is of the one
    that it started, and its lock may be held for ever where this process was forked.
    """
    server: Any = sys.modules["multiprocessing.forkserver"]._forkserver
    with contextlib.suppress(OSError, TypeError):
        os.close(server._forkserver_alive_fd)
    preload = server._preload_modules
    server.__init__()
    server._preload_modules = preload


# -- the import system ---------------------------------------------------------------------------

FIND_SPEC = "_find_spec"
"""What the import statement and ``importlib.util`` ask for a module, in both of their modules."""
DISCOVER_RESOLVERS = "_discover_resolvers"
"""What ``importlib.metadata.Distribution`` asks for the finders of distributions."""


def import_bootstrap() -> Any:
    """Return ``_frozen_importlib``, the module behind the import statement; None without one."""
    return sys.modules.get("_frozen_importlib")


def find_spec_function() -> Callable[..., Any] | None:
    """Return the function that the import statement finds modules with (``FIND_SPEC``), or None."""
    return getattr(import_bootstrap(), FIND_SPEC, None)


def distribution_resolvers(metadata: Any) -> Callable[[], Any]:
    """Return ``Distribution._discover_resolvers`` of ``importlib.metadata`` or its backport."""
    resolvers: Callable[[], Any] = metadata.Distribution._discover_resolvers
    return resolvers


def wait_for_import(name: str) -> None:
    """Wait until no other thread is importing a module; at once within the import itself.

    ``_frozen_importlib._lock_unlock_module`` is what the import statement itself calls when it
    finds a module in ``sys.modules``. Without it (another interpreter) the wait is left out.
    """
    wait = getattr(import_bootstrap(), "_lock_unlock_module", None)
    if wait is not None:
        wait(name)
