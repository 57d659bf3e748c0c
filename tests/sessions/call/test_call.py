"""Tests of functions called in a child, by all three methods."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.errors import ChildCrashed, ChildError, ChildExit, ChildTimeout
from pytest_cudafork.fixtures import RunInChild
from tests.support.isolation import is_gone
from tests.support.leaping_clock import LIMIT, leap_when
from tests.support.sessions import assert_no_crash, run_session
from tests.support.signs import Sign


@pytest.fixture(params=["run_forked", "run_spawned", "run_forkserver"])
def run(request: pytest.FixtureRequest) -> RunInChild:
    runner: RunInChild = request.getfixturevalue(request.param)
    return runner


Group: Any = getattr(builtins, "ExceptionGroup", None)


class ModuleError(Exception):
    """An exception that a plain pickle cannot rebuild: its ``__init__`` wants more than args."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


def test_a_closure_runs_in_another_process_and_gives_its_result(run: RunInChild) -> None:
    seen = {"a": [1, 2]}

    def work(factor: int, *, extra: int) -> Any:
        return os.getpid(), seen["a"], factor * extra

    pid, values, product = run(work, 3, extra=4)
    assert pid != os.getpid()
    assert (values, product) == ([1, 2], 12)


def test_an_exception_keeps_its_type_attributes_and_the_childs_traceback(run: RunInChild) -> None:
    def breaks() -> None:
        raise ModuleError("broken", code=7)

    with pytest.raises(ModuleError, match="broken") as caught:
        run(breaks)
    assert caught.value.code == 7
    assert "in breaks" in str(caught.value.__cause__)


class NoFileError(OSError):
    """Its file is held in C, and no argument of it."""

    def __init__(self, path: str) -> None:
        super().__init__(2, "no such file", path)


class PrefixError(Exception):
    """It changes what it is given."""

    def __init__(self, text: str) -> None:
        super().__init__(f"it failed: {text}")


@pytest.mark.parametrize("error", [NoFileError("it.txt"), PrefixError("why")], ids=repr)
def test_an_exception_keeps_its_text(run: RunInChild, error: Exception) -> None:
    def breaks() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        run(breaks)
    assert (str(caught.value), caught.value.args) == (str(error), error.args)
    (back,) = run(lambda one: [one], error)
    assert (type(back), str(back), back.args) == (type(error), str(error), error.args)


@pytest.mark.skipif(Group is None, reason="exception groups came with Python 3.11")
def test_a_group_keeps_exceptions_that_a_plain_pickle_cannot_rebuild(run: RunInChild) -> None:
    def breaks() -> None:
        inner = Group("inner", [ModuleError("broken", code=7)])
        raise Group("outer", [ValueError("one"), inner])

    with pytest.raises(Group, match="outer") as caught:
        run(breaks)
    one, inner = caught.value.exceptions
    assert isinstance(one, ValueError)
    assert isinstance(inner, Group)
    (broken,) = inner.exceptions
    assert isinstance(broken, ModuleError)
    assert (str(broken), broken.code) == ("broken", 7)


def test_a_local_exception_class_is_known_again(run: RunInChild) -> None:
    class LocalError(Exception):
        pass

    def breaks() -> None:
        raise LocalError

    with pytest.raises(LocalError):
        run(breaks)


def test_the_outcomes_of_pytest_come_back_as_they_are(run: RunInChild) -> None:
    with pytest.raises(pytest.skip.Exception, match="no GPU"):
        run(lambda: pytest.skip("no GPU"))
    with pytest.raises(pytest.xfail.Exception, match="known"):
        run(lambda: pytest.xfail("known"))
    with pytest.raises(pytest.fail.Exception, match="bad"):
        run(lambda: pytest.fail("bad"))
    with pytest.raises(pytest.exit.Exception, match="enough") as caught:
        run(lambda: pytest.exit("enough", returncode=4))
    assert caught.value.returncode == 4


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (None, None), (3, 3), ("no", "no")])
def test_sys_exit_is_never_a_pass(run: RunInChild, code: Any, expected: Any) -> None:
    with pytest.raises(ChildExit, match=r"sys\.exit") as caught:
        run(lambda: sys.exit(code))
    assert caught.value.code == expected


def test_an_end_before_the_result_is_never_a_pass(run: RunInChild) -> None:
    with pytest.raises(ChildExit, match="exited with status 0 before it gave a result"):
        run(lambda: os._exit(0))


def test_a_child_that_could_not_report_is_told_with_a_likely_cause(run: RunInChild) -> None:
    with pytest.raises(ChildExit, match=r"status 70 .* did the function close descriptors that it"):
        run(lambda: os.closerange(3, 1 << 16))  # a process of many tests has high numbers


def test_a_crash_names_the_signal_and_shows_the_stack(run: RunInChild) -> None:
    def reads_null() -> None:
        ctypes.string_at(0)

    with pytest.raises(ChildCrashed, match="SIGSEGV") as caught:
        run(reads_null)
    assert caught.value.exitcode == -signal.SIGSEGV
    assert "in reads_null" in caught.value.stacks
    with pytest.raises(ChildCrashed, match="out of memory"):
        run(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_crash_shows_the_stack_where_a_library_has_taken_the_signal_before(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import ctypes
        import faulthandler
        import signal

        import pytest
        from pytest_cudafork.errors import ChildCrashed

        def reads_null():
            ctypes.string_at(0)

        def test_it(run_forked):
            faulthandler.enable()
            handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
            ctypes.CDLL(None).signal(signal.SIGSEGV, handler)  # as C++ code does
            with pytest.raises(ChildCrashed, match="SIGSEGV") as caught:
                run_forked(reads_null)
            assert "in reads_null" in caught.value.stacks
        """
    )
    result = run_session(pytester, "-p", "no:faulthandler")
    result.assert_outcomes(passed=1)


def test_a_crash_after_the_result_is_not_a_result(run: RunInChild) -> None:
    def leaves_a_bomb() -> int:
        import atexit

        atexit.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
        return 1

    with pytest.raises(ChildCrashed, match="after it gave a result"):
        run(leaves_a_bomb)


def test_errors_that_nobody_can_hear_of_are_written_as_python_does(
    run: RunInChild, capfd: pytest.CaptureFixture[str]
) -> None:
    class Engine:
        def __del__(self) -> None:
            raise ValueError("not stopped")

    def works() -> None:
        Engine()
        thread = threading.Thread(target={"a": 1}.__getitem__, args=("no key",))
        thread.start()
        thread.join()

    run(works)
    written = capfd.readouterr().err
    assert "not stopped" in written
    assert "KeyError: 'no key'" in written


def test_what_the_function_logs_is_written_where_nobody_else_hears_of_it(
    run: RunInChild, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()  # where an imported library may have put a handler, and a level
    of_pytest = [one for one in root.handlers if type(one).__module__ == "_pytest.logging"]
    monkeypatch.setattr(root, "handlers", of_pytest)
    monkeypatch.setattr(root, "level", logging.WARNING)

    def works() -> None:
        import logging

        logging.getLogger("engine").warning("a worker is slow")
        logging.getLogger("engine").info("all is well")

    run(works)
    assert capfd.readouterr().err == "a worker is slow\n"


def test_a_forked_function_still_reads_the_log_of_its_test(
    run_forked: RunInChild, caplog: pytest.LogCaptureFixture
) -> None:
    def works() -> list[str]:
        import logging

        logging.getLogger("engine").warning("a worker is slow")
        return caplog.messages

    assert run_forked(works) == ["a worker is slow"]


def test_a_hang_ends_at_its_time_limit_with_the_stacks_of_all_threads(
    run: RunInChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = Sign(tmp_path / "hangs")
    leap_when(monkeypatch, hangs.is_given)

    def waits_for_ever() -> None:
        begun = threading.Event()

        def other_thread() -> None:
            begun.set()
            time.sleep(10_000)

        threading.Thread(target=other_thread, daemon=True).start()
        begun.wait()
        hangs.give()
        time.sleep(10_000)

    with pytest.raises(ChildTimeout, match="time limit of 600 s") as caught:
        run(waits_for_ever, timeout=LIMIT)
    assert "in waits_for_ever" in caught.value.stacks
    assert "in other_thread" in caught.value.stacks


class HangsWhenShownError(Exception):
    """One of which no report can be made; it is given the sign that it hangs."""

    def __str__(self) -> str:
        self.args[0].give()
        while True:
            time.sleep(1)


def test_output_is_there_where_the_outcome_cannot_be_told(
    run: RunInChild,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs = Sign(tmp_path / "hangs")
    leap_when(monkeypatch, hangs.is_given)

    def prints_and_hangs() -> None:
        print("printed", end="")  # noqa: T201
        raise HangsWhenShownError(hangs)

    with pytest.raises(ChildTimeout):
        run(prints_and_hangs, timeout=LIMIT)
    assert capfd.readouterr().out == "printed"


def test_what_is_registered_for_the_end_of_the_child_is_within_its_limit(
    run: RunInChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = Sign(tmp_path / "hangs")
    leap_when(monkeypatch, hangs.is_given)

    def hangs_at_exit() -> int:
        atexit.register(time.sleep, 10_000)
        atexit.register(hangs.give)
        return 5

    with pytest.raises(ChildTimeout, match="did not end after it gave a result within its time"):
        run(hangs_at_exit, timeout=LIMIT)


def test_a_hang_in_native_code_that_holds_the_gil_ends_too(
    run_forked: RunInChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = Sign(tmp_path / "hangs")
    leap_when(monkeypatch, hangs.is_given)

    def holds_the_gil() -> None:
        hangs.give()
        ctypes.PyDLL(None).sleep(10_000)

    with pytest.raises(ChildTimeout) as caught:
        run_forked(holds_the_gil, timeout=LIMIT)
    assert "in holds_the_gil" in caught.value.stacks


def test_a_child_that_ignores_the_abort_tells_its_stacks_all_the_same(
    run_forked: RunInChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = Sign(tmp_path / "hangs")
    leap_when(monkeypatch, hangs.is_given)

    def is_deaf() -> None:
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        hangs.give()
        time.sleep(10_000)

    with pytest.raises(ChildTimeout) as caught:
        run_forked(is_deaf, timeout=LIMIT)
    assert "in is_deaf" in caught.value.stacks


def test_descendants_that_hold_the_output_end_with_the_child(run: RunInChild) -> None:
    def leaves_one() -> int:
        return subprocess.Popen(["sleep", "10000"]).pid  # much longer than any limit here

    assert is_gone(run(leaves_one))


def test_descendants_in_a_session_of_their_own_end_with_a_child_that_hangs(
    run: RunInChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Sign(tmp_path / "pid")
    leap_when(monkeypatch, told.is_given)

    def hangs() -> None:
        told.give(subprocess.Popen(["sleep", "10000"], start_new_session=True).pid)
        time.sleep(10_000)

    with pytest.raises(ChildTimeout):
        run(hangs, timeout=LIMIT)
    assert is_gone(int(told.path.read_text()))


def test_output_arrives_after_what_the_parent_had_written(
    run: RunInChild, capfd: pytest.CaptureFixture[str]
) -> None:
    def talks() -> None:
        sys.stdout.write("one\n")
        sys.stderr.write("err\n")

    sys.stdout.write("zero ")
    run(talks)
    assert capfd.readouterr() == ("zero one\n", "err\n")


def test_a_forked_grandchild_that_lives_on_does_not_stall_the_parent(run: RunInChild) -> None:
    def leaves_one() -> int:
        begun, begins = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.write(begins, b".")
            time.sleep(10_000)  # much longer than any limit here
            os._exit(0)
        os.read(begun, 1)
        return pid

    assert is_gone(run(leaves_one))


def test_warnings_come_back_with_their_line_and_class(run: RunInChild) -> None:
    class OwnWarning(UserWarning):
        pass

    def warns() -> None:
        warnings.warn("mind this", OwnWarning, stacklevel=1)

    line = warns.__code__.co_firstlineno + 1
    with pytest.warns(OwnWarning, match="mind this") as caught:
        run(warns)
    assert [(one.filename, one.lineno) for one in caught] == [(__file__, line)]


@pytest.mark.parametrize("method", ["run_spawned", "run_forkserver"])
def test_a_filter_imports_nothing_into_a_child_and_holds_all_the_same(
    method: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latelib.py").write_text(
        "import warnings\nclass Outer:\n    class LateWarning(UserWarning): pass\n"
        "class OtherWarning(UserWarning): pass\n"
        "def warn(category): warnings.warn('late', category)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    latelib: Any = importlib.import_module("latelib")

    def work() -> tuple[bool, str]:
        before = "latelib" in sys.modules
        late: Any = importlib.import_module("latelib")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=late.OtherWarning)
            late.warn(late.OtherWarning)
        try:
            late.warn(late.Outer.LateWarning)
        except late.Outer.LateWarning:
            return before, "raised"
        return before, "shown"

    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=latelib.Outer.LateWarning)
        assert request.getfixturevalue(method)(work) == (False, "raised")
    assert "latelib" in sys.modules
    monkeypatch.delitem(sys.modules, "latelib")


def test_warnings_that_are_errors_here_are_errors_there(run: RunInChild) -> None:
    def warns() -> None:
        warnings.warn("mind this", UserWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="mind this") as caught:
            run(warns)
    assert "in warns" in str(caught.value.__cause__)


def test_ten_megabytes_travel_both_ways(run: RunInChild) -> None:
    data = os.urandom(10_000_000)
    assert run(lambda value: value[::-1], data) == data[::-1]


def test_a_result_that_does_not_pickle_is_told_by_its_repr(run: RunInChild) -> None:
    def gives_a_lock() -> Any:
        return threading.Lock()

    with pytest.raises(ChildError, match=r"does not pickle .*unlocked _thread\.lock"):
        run(gives_a_lock)


class SelfishError(Exception):
    """An exception that no pickle takes."""

    def __reduce__(self) -> Any:
        raise TypeError("mine")

    def __init__(self, value: object = None) -> None:
        super().__init__(value)


def test_an_exception_that_does_not_pickle_is_told_with_its_traceback(run: RunInChild) -> None:
    def breaks() -> None:
        raise SelfishError(threading.Lock())

    with pytest.raises(ChildError, match=r"SelfishError.*mine") as caught:
        run(breaks)
    assert "in breaks" in str(caught.value.__cause__)


class ForbidsPickle:
    """An object of a test that is not to be copied."""

    def __reduce__(self) -> str:
        pytest.fail("it is not to be copied")


class ForbidsRepr:
    """An object that nobody can show."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class ForbidsTextError(Exception):
    """An exception that nobody can show."""

    def __str__(self) -> str:
        pytest.fail("it has no text")

    __repr__ = __str__


def test_what_packs_an_outcome_may_raise_anything(run: RunInChild) -> None:
    def breaks() -> None:
        raise ForbidsTextError

    with pytest.raises(ChildError, match=r"does not pickle .*it is not to be copied"):
        run(lambda: [ForbidsPickle()])
    assert type(run(ForbidsRepr)) is ForbidsRepr
    with pytest.raises(ForbidsTextError):
        run(breaks)


def test_arguments_that_do_not_pickle_are_refused_by_name(run_spawned: RunInChild) -> None:
    with pytest.raises(ChildError, match=r"cannot be sent to another interpreter.*lock"):
        run_spawned(lambda lock: None, threading.Lock())


def test_arguments_that_do_not_pickle_are_fine_for_a_fork(run_forked: RunInChild) -> None:
    assert run_forked(lambda lock: lock.locked(), threading.Lock()) is False


def test_the_child_has_the_parents_surroundings(
    run: RunInChild, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISOLATE_TEST", "seen")
    monkeypatch.syspath_prepend(str(tmp_path / "somewhere"))

    def surroundings() -> Any:
        umask = os.umask(0)
        os.umask(umask)
        variable = os.environ["ISOLATE_TEST"]
        return os.getcwd(), variable, umask, [p for p in sys.path if p], os.read(0, 1)

    before = os.umask(0o027)
    try:
        cwd, variable, umask, path, typed = run(surroundings)
    finally:
        os.umask(before)
    assert (cwd, variable, umask, typed) == (str(tmp_path), "seen", 0o027, b"")
    assert path == [p for p in sys.path if p]


CALLS_AT_IMPORT = """
import os, sys
from pytest_cudafork import isolated

with open("imports", "a+") as file:
    file.write("x")
    file.seek(0)
    if len(file.read()) > 4:
        sys.exit("processes start others without end")

@isolated(method={method!r})
def count():
    return 2

N = count()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_module_that_calls_its_own_helper_when_it_is_imported_starts_no_processes_without_end(
    method: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        helpers=CALLS_AT_IMPORT.format(method=method), test_it="from helpers import N"
    )
    result = run_session(pytester)
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [f"*ChildError: count is called while a module is imported that its own * ({method})*"]
    )
    assert (pytester.path / "imports").read_text() == "xx"


def test_a_module_that_is_imported_for_a_call_may_call_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        probe="""
        from pytest_cudafork import isolated

        @isolated(method="spawn")
        def count():
            return 2
        """,
        helpers="""
        from probe import count
        from pytest_cudafork import isolated

        N = count()

        @isolated(method="spawn")
        def more():
            return N + count()
        """,
        test_it="""
        from helpers import more

        def test_more():
            assert more() == 4
        """,
    )
    result = run_session(pytester)
    result.assert_outcomes(passed=1)
