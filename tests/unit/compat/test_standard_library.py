"""Names of the standard library, and what is done with them."""

from __future__ import annotations

import _ctypes
import atexit
import concurrent.futures
import functools
import importlib.metadata
import importlib.util
import io
import logging.handlers
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.resource_tracker
import multiprocessing.spawn
import multiprocessing.util
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
import unittest
import warnings
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest

from pytest_cudafork.compat import standard_library, unpatched
from tests.unit.compat import require

NAMES: list[tuple[Any, str, str]] = [
    (_ctypes, "dlopen", "asking the driver"),
    (atexit, "_clear", "the start of a forked child"),
    (atexit, "_run_exitfuncs", "the end of a child"),
    (weakref.finalize, "_registry", "the end of a forked child"),
    (weakref.finalize, "_exitfunc", "the end of a forked child"),
    (weakref.finalize, "_index_iter", "the start of a forked child"),
    (weakref.finalize, "_registered_with_atexit", "the start of a forked child"),
    (logging, "_handlerList", "the start of a forked child"),
    (multiprocessing.process, "_children", "the start of a forked child"),
    (multiprocessing.util, "_finalizer_registry", "the start of a forked child"),
    (multiprocessing.util, "_exit_function", "the start of a forked child"),
    (multiprocessing.resource_tracker, "_resource_tracker._fd", "the end of a child"),
    (multiprocessing.spawn, "get_preparation_data", "child_patch"),
    (multiprocessing.forkserver, "_forkserver._forkserver_pid", "child_patch"),
    (multiprocessing.forkserver, "_forkserver._forkserver_alive_fd", "child_patch"),
    (multiprocessing.forkserver, "_forkserver._forkserver_address", "child_patch"),
    (multiprocessing.resource_tracker, "_resource_tracker._pid", "the end of a child"),
    (multiprocessing.Process, "_start_method", "telling how a process is started"),
    (threading, "_shutdown", "the end of a file of the file worker"),
    (subprocess, "_args_from_interpreter_flags", "processes with this one's options"),
    (os.environ, "_data", "the environment of a test's process"),
    (sys.modules["_frozen_importlib"], "_find_spec", "the audit's --without"),
    (importlib.util, "_find_spec", "the audit's --without"),
    (sys.modules["_frozen_importlib"], "_lock_unlock_module", "hooks on modules of other threads"),
    (importlib.metadata.Distribution, "_discover_resolvers", "the audit's --without"),
]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)


@pytest.mark.parametrize(("owner", "name", "needed_for"), NAMES, ids=_word)
def test_python_still_has_the_name(owner: Any, name: str, needed_for: str) -> None:
    require("Python", owner, name, needed_for)


def in_a_fork(job: Callable[[], bool]) -> bool:
    """Whether a job comes out true in a child, which ends without this process's own work."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if job() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_exit_functions_are_called_and_forgotten() -> None:
    def job() -> bool:
        told: list[str] = []
        atexit.register(told.append, "the parent's")
        standard_library.clear_exit_functions()
        atexit.register(told.append, "the child's")
        standard_library.run_exit_functions()
        standard_library.run_exit_functions()
        return told == ["the child's"]

    assert in_a_fork(job)


def test_what_pytest_would_keep_of_errors_is_written_and_other_hooks_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kept(_: object) -> None:
        """As pytest's."""

    kept.__module__ = "_pytest.unraisableexception"
    monkeypatch.setattr(sys, "unraisablehook", functools.partial(kept))
    monkeypatch.setattr(threading, "excepthook", kept)
    standard_library.tell_of_ignored_errors()
    assert sys.unraisablehook is sys.__unraisablehook__
    assert threading.excepthook is threading.__excepthook__
    kept.__module__ = "mine"
    monkeypatch.setattr(threading, "excepthook", kept)
    standard_library.tell_of_ignored_errors()
    assert threading.excepthook is kept


def test_the_log_is_shown_where_pytest_alone_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    kept = [one for one in root.handlers if type(one).__module__ == "_pytest.logging"]
    assert kept, "pytest has handlers of its own"
    other = logging.NullHandler()
    for before, after in (
        ([], []),
        ([other], [other]),
        ([*kept, other], [*kept, other]),
        (kept, [*kept, logging.lastResort]),
    ):
        monkeypatch.setattr(root, "handlers", list(before))
        standard_library.show_log()
        assert root.handlers == after
    monkeypatch.setattr(logging, "lastResort", None)
    monkeypatch.setattr(root, "handlers", list(kept))
    standard_library.show_log()
    assert root.handlers == kept


def test_finalizers_of_a_child_run_at_its_end_and_those_of_its_parent_do_not() -> None:
    def job() -> bool:
        class Thing:
            pass

        told: list[str] = []
        theirs, mine = Thing(), Thing()
        finalizer = weakref.finalize(theirs, told.append, "the parent's")
        standard_library.clear_exit_functions()
        weakref.finalize(mine, told.append, "the child's")
        standard_library.run_exit_functions()
        return told == ["the child's"] and finalizer.alive

    assert in_a_fork(job)


def test_finalizers_that_are_there_are_not_written_to_when_functions_are_dropped() -> None:
    """Each would be a page of memory that a child copies. Twice, as in a child of a child."""

    def job() -> bool:
        class Thing:
            pass

        told: list[str] = []
        things = [Thing() for _ in range(3)]
        finalizers = []
        for name, thing in zip(("first", "second"), things, strict=False):
            finalizers.append(weakref.finalize(thing, told.append, name))
            standard_library.clear_exit_functions()
        untouched = [finalizer.atexit for finalizer in finalizers]
        standard_library.run_exit_functions()  # there is nothing to call
        nothing_told = not told
        weakref.finalize(things[2], told.append, "third")
        standard_library.run_exit_functions()
        return untouched == [True, True] and nothing_told and told == ["third"]

    assert in_a_fork(job)


def test_handlers_of_a_child_write_what_they_keep_and_those_of_its_parent_do_not() -> None:
    def keeping(target: logging.Handler) -> logging.Handler:
        handler = logging.handlers.MemoryHandler(100, target=target)
        handler.emit(logging.makeLogRecord({"msg": "kept", "levelno": logging.INFO}))
        return handler

    def job() -> bool:
        theirs, mine = io.StringIO(), io.StringIO()
        handlers = [keeping(logging.StreamHandler(theirs))]
        standard_library.clear_exit_functions()
        standard_library.let_logging_end()
        handlers.append(keeping(logging.StreamHandler(mine)))
        standard_library.run_exit_functions()
        return (theirs.getvalue(), mine.getvalue()) == ("", "kept\n")

    assert in_a_fork(job)


def test_where_logging_is_not_imported_there_is_nothing_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "logging", cast("Any", None))
    standard_library.let_logging_end()


def test_a_child_does_not_take_over_children_and_finalizers() -> None:
    def job() -> bool:
        multiprocessing.process._children.add(object())  # type: ignore[attr-defined]
        multiprocessing.util.Finalize(None, print, exitpriority=1)
        standard_library.clear_exit_functions()
        standard_library.forget_multiprocessing_children()
        registered: int = atexit._ncallbacks()
        return (
            not multiprocessing.active_children()
            and not multiprocessing.util._finalizer_registry  # type: ignore[attr-defined]
            and registered == 1
        )

    assert in_a_fork(job)


def test_pools_are_ended_where_they_are_this_process_s() -> None:
    def job() -> bool:
        standard_library.clear_exit_functions()
        theirs = pool.submit(abs, -1)  # nobody is there to do it
        standard_library.forget_multiprocessing_children()
        mine = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
        assert mine.submit(abs, -2).result(200) == 2
        standard_library.end_process_pools()
        standard_library.run_exit_functions()
        return not theirs.done() and not multiprocessing.active_children()

    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(abs, -3).result(200) == 3
        assert in_a_fork(job)
        assert pool.submit(abs, -4).result(200) == 4


def test_a_child_waits_for_its_processes_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(standard_library, "_JOIN_SECONDS", 5.0)

    def job() -> bool:
        standard_library.clear_exit_functions()
        standard_library.forget_multiprocessing_children()
        ends = context.Process(target=(tmp_path / "written").touch, name="ends")
        stays = context.Process(target=time.sleep, args=(300,), name="stays")
        daemon = context.Process(target=time.sleep, args=(300,), daemon=True)
        manager: Any = context.Manager()
        for each in (ends, stays, daemon):
            each.start()
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        standard_library.run_exit_functions()
        said = written.getvalue()
        alive = [each.is_alive() for each in (ends, stays, daemon, manager._process)]
        stays.kill()
        told = "stays still ran 5 s after the work of a forked process" in said
        return alive == [False, True, False, False] and told and "ends" not in said[:40]

    assert in_a_fork(job)
    assert (tmp_path / "written").exists()


def test_a_child_starts_a_fork_server_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = multiprocessing.forkserver.ForkServer()
    monkeypatch.setattr(multiprocessing.forkserver, "_forkserver", server)
    server.set_forkserver_preload(["json"])
    server.ensure_running()
    pid, fd = server._forkserver_pid, server._forkserver_alive_fd

    def job() -> bool:
        standard_library.forget_multiprocessing_children()
        closed = not os.path.exists(f"/proc/self/fd/{fd}")
        server.ensure_running()
        mine = standard_library.forkserver_pid()
        standard_library.end_forkserver_unless(None)
        return closed and mine not in (None, pid) and server._preload_modules == ["json"]

    with server._lock:  # as by another thread
        assert in_a_fork(job)
    assert standard_library.forkserver_pid() == pid
    os.kill(pid, 0)
    standard_library.end_forkserver_unless(None)


def test_multiprocessing_that_was_not_imported_has_nothing_to_forget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "multiprocessing.process")
    monkeypatch.delitem(sys.modules, "multiprocessing.util")
    standard_library.forget_multiprocessing_children()
    assert "multiprocessing.util" not in sys.modules


def test_variables_are_those_that_the_kernel_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAFORK_ODD", "\udcff=")
    found = standard_library.variables_in_bytes(os.environ)
    assert found == dict(os.environb)
    assert found[b"CUDAFORK_ODD"] == b"\xff="


def test_a_resource_tracker_is_known_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tracker:
        _fd: int | None = None
        _pid: int | None = None

    tracker = Tracker()
    monkeypatch.setattr(multiprocessing.resource_tracker, "_resource_tracker", tracker)
    assert standard_library.resource_tracker() is None
    tracker._fd, tracker._pid = 7, 4711
    assert standard_library.resource_tracker() == (7, 4711)
    monkeypatch.delitem(sys.modules, "multiprocessing.resource_tracker")
    assert standard_library.resource_tracker() is None


def test_a_process_knows_its_start_method(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in multiprocessing.get_all_start_methods():
        context: Any = multiprocessing.get_context(method)
        process = context.Process()
        assert standard_library.start_method_of(process) == method
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "by default")
    assert standard_library.start_method_of(multiprocessing.Process()) == "by default"


def test_the_flags_of_this_interpreter_start_one_like_it() -> None:
    code = "import sys; print(sys.flags.optimize, sys.flags.dont_write_bytecode)"
    command = [sys.executable, *standard_library.interpreter_flags(), "-c", code]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.split() == [str(sys.flags.optimize), str(int(sys.flags.dont_write_bytecode))]


def test_find_spec_is_what_the_import_statement_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    visible = standard_library.find_spec_function()
    assert visible is not None

    def find_spec(name: str, *args: Any) -> Any:
        return None if name == "wave" else visible(name, *args)

    monkeypatch.delitem(sys.modules, "wave", raising=False)
    monkeypatch.setattr(standard_library.import_bootstrap(), standard_library.FIND_SPEC, find_spec)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("wave")


def test_resolvers_find_the_distributions() -> None:
    context = importlib.metadata.DistributionFinder.Context(name="pytest")
    resolvers = list(standard_library.distribution_resolvers(importlib.metadata)())
    assert any(list(resolver(context)) for resolver in resolvers)


def test_an_import_of_another_thread_is_waited_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cudafork_slow.py").write_text(
        "import gate\ngate.entered.set()\ngate.go.wait(200)\n"
    )
    gate: Any = types.ModuleType("gate")
    gate.entered, gate.go = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "gate", gate)
    monkeypatch.syspath_prepend(tmp_path)
    importing = threading.Thread(target=importlib.import_module, args=["cudafork_slow"])
    importing.start()
    assert gate.entered.wait(200)
    waiting = threading.Thread(target=standard_library.wait_for_import, args=["cudafork_slow"])
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.go.set()
    waiting.join(200)
    importing.join(200)
    assert not waiting.is_alive()
    monkeypatch.delitem(sys.modules, "cudafork_slow")


def test_another_interpreter_waits_for_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_library, "import_bootstrap", lambda: None)
    standard_library.wait_for_import("os")
    assert standard_library.find_spec_function() is None


def test_what_is_sent_with_the_preparation_is_unknown_to_multiprocessing_and_undone() -> None:
    spawn: Any = types.SimpleNamespace(get_preparation_data=lambda name: {"name": name})
    undo = standard_library.send_with_preparation(spawn, "of_ours", 3)
    assert spawn.get_preparation_data("it") == {"of_ours": 3, "name": "it"}
    undo_later = standard_library.send_with_preparation(spawn, "of_ours", 4)
    assert list(spawn.get_preparation_data("it").items()) == [("of_ours", 4), ("name", "it")]
    undo_later()
    assert spawn.get_preparation_data("it") == {"of_ours": 3, "name": "it"}
    undo()
    assert spawn.get_preparation_data("it") == {"name": "it"}
    multiprocessing.spawn.prepare({"of_ours": 3})


def test_a_fork_server_that_was_started_meanwhile_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server: Any = multiprocessing.forkserver.ForkServer()
    monkeypatch.setattr(multiprocessing.forkserver, "_forkserver", server)
    assert standard_library.forkserver_pid() is None
    standard_library.end_forkserver_unless(None)
    server.ensure_running()
    pid, address = server._forkserver_pid, server._forkserver_address
    standard_library.end_forkserver_unless(pid)
    assert standard_library.forkserver_pid() == pid
    standard_library.end_forkserver_unless(None)
    assert standard_library.forkserver_pid() is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not os.path.exists(address)


def test_what_records_warnings_can_be_put_in_force_again() -> None:
    require("Python", warnings, "_showwarnmsg_impl", "let a fixture record what a child warns of")
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        shows = standard_library.what_shows_warnings()
        assert shows == standard_library.what_shows_warnings()
        with warnings.catch_warnings(record=True) as inner:
            assert standard_library.what_shows_warnings() != shows
            with standard_library.warnings_shown_by(shows):
                warnings.warn("to the outer list", stacklevel=1)
            warnings.warn("to the inner list", stacklevel=1)
    assert [str(one.message) for one in outer] == ["to the outer list"]
    assert [str(one.message) for one in inner] == ["to the inner list"]


def test_a_library_is_found_if_it_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(path: Any) -> Any:
        raise AssertionError("the test's own")

    def look() -> Any:
        with pytest.raises(OSError, match=r"libcudafork-no-such\.so"):
            standard_library.mapped_library("libcudafork-no-such.so")
        return standard_library.mapped_library("libc.so.6")

    look()  # a measurement of coverage uses the function for each file that it has not seen
    monkeypatch.setattr(os, "fspath", replaced)
    found = look()
    monkeypatch.undo()
    assert found.getpid() == os.getpid()


def test_the_stacks_of_a_crash_are_those_of_python(tmp_path: pathlib.Path) -> None:
    source = (
        "import os, sys\n"
        "from pytest_cudafork.compat import standard_library\n"
        "standard_library.write_python_stacks(int(sys.argv[1]))\n"
        "os.abort()\n"
    )
    with open(tmp_path / "stacks", "w+b") as file:
        command = [sys.executable, "-c", source, str(file.fileno())]
        done = subprocess.run(command, pass_fds=[file.fileno()], check=False)
        file.seek(0)
        text = file.read().decode()
    assert done.returncode == -signal.SIGABRT
    assert 'File "<string>", line 4' in text
    assert "C stack" not in text
    assert "Binary file" not in text


def test_tests_run_in_the_main_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert standard_library.in_main_interpreter()
    monkeypatch.setattr(unpatched.ctypes, "PyDLL", lambda name: object())
    assert standard_library.in_main_interpreter()  # nobody can tell of another one


class Awaited(unittest.IsolatedAsyncioTestCase):
    """What unittest would run."""

    __test__ = False

    def runTest(self) -> None:
        raise AssertionError


def test_a_case_of_unittest_is_known_and_leaves_what_runs_it_behind() -> None:
    assert standard_library.is_unittest(Awaited)
    for other in (None, int, types.SimpleNamespace, object()):
        assert not standard_library.is_unittest(other)
    case = Awaited()
    assert standard_library.test_of_unittest(case) == "runTest"
    assert standard_library.test_of_unittest(object()) == ""
    # public names say no more of them: a private one that is called otherwise would not be left
    assert {"_outcome", "_cleanups", "_testMethodName"} <= set(vars(case))
    case.addCleanup(print)
    case.number = 3  # type: ignore[attr-defined]
    copied = standard_library.apart_from_its_run(case)
    assert (copied.number, copied._outcome, copied._cleanups) == (3, None, [])
    assert len(case._cleanups) == 1  # type: ignore[attr-defined]
    loop = [name for name in vars(case) if name.startswith("_asyncio")]
    assert loop
    assert [getattr(copied, name) for name in loop] == [None] * len(loop)
