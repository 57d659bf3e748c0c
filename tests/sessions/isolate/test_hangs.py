"""Tests of isolated tests that hang: each is ended at its limit, told with all its stacks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import leaps
from tests.support.death import HANGS_IN_C, METHODS, headline, run_deaths, told
from tests.support.leaps import LIMIT, LONGER
from tests.support.sessions import (
    assert_no_crash,
    run_session,
)

pytestmark = pytest.mark.fresh_children("children and descriptors of a session are counted")

HANGS = """
@pytest.fixture
def hangs_in_setup():
    print("words in set-up")
    time_is_up()
    time.sleep(1000)
@pytest.fixture
def hangs_in_teardown():
    yield
    print("words in tear-down")
    time_is_up()
    time.sleep(1000)
@pytest.fixture(autouse=True)
def noted():
    note(os.getpid())

def pause(gil=False):
    # waits for a signal in C code, like a lock that is never released
    time_is_up()
    (ctypes.PyDLL if gil else ctypes.CDLL)(None).pause()
def other_thread():
    time_is_up()
    time.sleep(1000)

def test_python():
    print("words of test_python")
    time_is_up()
    while True: pass
def test_two_threads():
    threading.Thread(target=other_thread, daemon=True).start()
    time.sleep(1000)
def test_c(): pause()
def test_c_with_the_gil(): pause(gil=True)
def test_signals_blocked():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pause()
def test_abort_ignored():
    signal.signal(signal.SIGABRT, signal.SIG_IGN)
    pause()
def test_stopped():
    time_is_up_once(f"grep -q '^State:.T' /proc/{os.getpid()}/status")
    os.kill(os.getpid(), signal.SIGSTOP)
def test_setup(hangs_in_setup): pass
def test_teardown(hangs_in_teardown): pass
def test_exec():
    time_is_up_once(f"grep -q ^sleep /proc/{os.getpid()}/cmdline")
    os.execvp("sleep", ["sleep", "1000.25"])
def test_grandchild_ignores_everything():
    code = "import signal, time; [signal.signal(n, 1) for n in (1, 2, 15)]; print('up', flush=True)"
    code += "; time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    note(child.pid)
    child.stdout.readline()
    time_is_up()
    child.wait()
def test_last(): pass
"""


PHASES = {"test_setup": "setup", "test_teardown": "teardown"}


FRAMES = {
    "test_python": ["in test_python"],
    "test_two_threads": ["in other_thread", "in test_two_threads"],
    "test_c": ["in pause", "in test_c"],
    "test_c_with_the_gil": ["in test_c_with_the_gil"],
    "test_signals_blocked": ["in pause", "in test_signals_blocked"],
    "test_abort_ignored": ["in test_abort_ignored"],
    "test_stopped": ["in test_stopped"],
    "test_setup": ["in hangs_in_setup", "words in set-up"],
    "test_teardown": ["in hangs_in_teardown", "words in tear-down"],
    "test_exec": ["another program", "sleep 1000.25"],
    "test_grandchild_ignores_everything": ["in test_grandchild_ignores_everything"],
}


@pytest.mark.parametrize("method", METHODS)
def test_every_hang_is_ended_and_told_with_its_stacks(
    pytester: pytest.Pytester, method: str
) -> None:
    args = []
    if method == "spawn":  # they wait most of their time
        pytest.importorskip("xdist")
        args = ["-p", "xdist.plugin", "-n", str(len(FRAMES) // 2)]
    result = run_deaths(pytester, method, HANGS, *args)
    for test, frames in FRAMES.items():
        phase = PHASES.get(test, "call")
        pytest.LineMatcher([headline(result, test)]).fnmatch_lines(
            [f"ChildTimeout: time limit of {LIMIT} s exceeded in {phase}: *"]
        )
        for frame in frames:
            assert frame in told(result, test), told(result, test)
    assert "words of test_python" in told(result, "test_python")
    result.stdout.fnmatch_lines_random(
        ["PASSED test_d.py::test_last", "PASSED test_d.py::test_teardown"]
    )
    assert result.parseoutcomes() == {"failed": 9, "errors": 2, "passed": 2}


FINISH = """
def pytest_sessionfinish(session):
    import os, time
    if session.config.pluginmanager.hasplugin("cudafork-work"):
        for item in session.items:
            if "hangs" in item.name:
                print("words in session finish")
                hangs_at_the_end(item.module, time)
            elif "dies" in item.name:
                os.abort()
def hangs_at_the_end(module, time):
    module.time_is_up()
    time.sleep(1000)
"""
CLOSES_WHEN_IT_HANGS = """
import time as _time
from pytest_cudafork.process import server_process as _server_process

_server_process.CLOSE_SECONDS = 1.0

def _close(self, close=_server_process.ServerProcess.close):
    # so long it may take to end; it has begun to hang by then
    import socket
    if self.is_mine and not self.is_gone:
        self._control.shutdown(socket.SHUT_WR)
        until = _time.monotonic() + 120
        while not _os.listdir(_LEAPS) and _time.monotonic() < until:
            _time.sleep(0.02)
    close(self)

_server_process.ServerProcess.close = _close
"""


FINISHING = """
def test_hangs(): note(os.getpid())
def test_last(): pass
"""


def test_a_hang_in_the_session_finish_of_a_child_is_told_as_the_tests(
    pytester: pytest.Pytester,
) -> None:
    result = run_deaths(pytester, "spawn", FINISHING, conftest=FINISH)
    words = f"ChildTimeout: time limit of {LIMIT} s exceeded after the test was over"
    assert words in headline(result, "test_hangs")
    assert "in hangs_at_the_end" in told(result, "test_hangs")
    result.stdout.fnmatch_lines(["PASSED test_d.py::test_last"])


def test_a_death_in_the_session_finish_of_a_child_is_told_as_the_tests(
    pytester: pytest.Pytester,
) -> None:
    body = FINISHING.replace("hangs", "dies")
    result = run_deaths(pytester, "spawn", body, conftest=FINISH)
    assert "ChildCrashed: SIGABRT after the test was over" in headline(result, "test_dies")
    result.stdout.fnmatch_lines(["PASSED test_d.py::test_last"])


@pytest.mark.parametrize("strict", [(), ("-W", "error")])
def test_a_hang_in_the_session_finish_of_the_fork_server_is_a_warning(
    pytester: pytest.Pytester, strict: tuple[str, ...]
) -> None:
    # its session ends once, after all tests
    conftest = FINISH + CLOSES_WHEN_IT_HANGS
    result = run_deaths(pytester, "forkserver", FINISHING, *strict, conftest=conftest)
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*RuntimeWarning: the fork server did not end within 1 s and was killed at the end *",
            "*File *, line * in hangs_at_the_end",
        ]
    )


def test_a_death_in_the_session_finish_of_the_fork_server_is_a_warning(
    pytester: pytest.Pytester,
) -> None:
    body = FINISHING.replace("hangs", "dies")
    result = run_deaths(pytester, "forkserver", body, conftest=FINISH)
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*RuntimeWarning: the fork server was killed by SIGABRT *"])


@pytest.mark.parametrize("source", ["option", "variable", "ini"])
def test_a_time_limit_for_the_session_holds_where_no_marker_has_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    args = ["--cuda-fork-isolate=fork"]
    if source == "option":
        args.append(f"--cuda-fork-isolate-timeout={LIMIT}.5")
    elif source == "variable":
        monkeypatch.setenv("PYTEST_CUDA_FORK_ISOLATE_TIMEOUT", f"{LIMIT}.5")
    else:
        pytester.makeini(f"[pytest]\ncuda_fork_isolate_timeout = {LIMIT}.5")
    folder = pytester.path / "leaps"
    pytester.makeconftest(leaps.conftest(folder))
    pytester.makepyfile(
        leaps.module(folder)
        + f"""
import pytest, time
def test_hangs():
    time_is_up()
    time.sleep(1000)
@pytest.mark.cuda_isolated(timeout={LONGER})
def test_with_a_limit_of_its_own():
    time_is_up()
    time.sleep(0.5)
"""
    )
    result = run_session(pytester, *args)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"ChildTimeout: time limit of {LIMIT}.5 s exceeded in call: *"])


def fake_py_spy(pytester: pytest.Pytester, script: str) -> dict[str, str]:
    """Put a program named py-spy first on the path and return the environment for it."""
    folder = pytester.mkdir("bin")
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def run_native(pytester: pytest.Pytester, script: str) -> str:
    """Run a hang with this py-spy and return what is told."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fake_py_spy(pytester, script).items():
            patch.setenv(name, value)
        return told(run_deaths(pytester, "forkserver", HANGS_IN_C), "test_c")


no_real_py_spy = pytest.mark.skipif(
    Path(sys.executable).with_name("py-spy").exists(), reason="the real py-spy goes first"
)


@no_real_py_spy
def test_py_spy_gives_the_native_stacks_of_a_hang(pytester: pytest.Pytester) -> None:
    text = told_by = run_native(
        pytester,
        'echo "$*" >> "$0.log"\n'
        'printf \'Thread 1 (idle): "MainThread"\\n    pause (libc.so.6)\\n    test_c (t.py:1)\\n'
        "    pytest_pyfunc_call (_pytest/python.py:1)\\n    main (x.py:1)\\n'",
    )
    assert "Native stacks" in text
    assert "    pause (libc.so.6)\n    test_c (t.py:1)\n    ... pytest and its start" in text
    assert "main (x.py:1)" not in text
    assert "in test_c" in told_by  # Python's stacks are there as ever
    (pid,) = (pytester.path / "notes").read_text().split()
    log = (pytester.path / "bin" / "py-spy.log").read_text()
    assert log == f"dump --native --pid {pid}\n"


@no_real_py_spy
def test_a_py_spy_that_fails_costs_no_stacks(pytester: pytest.Pytester) -> None:
    text = run_native(pytester, "echo 'Permission denied: try sudo' >&2; exit 1")
    assert "py-spy failed with status 1: Permission denied" in text
    assert "in test_c" in text


@pytest.mark.parametrize("limit", ["float('inf')", "10**8"])
def test_a_time_limit_beyond_all_measure_is_a_time_limit(
    pytester: pytest.Pytester, limit: str
) -> None:
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.cuda_isolated(method="fork", timeout={limit})
        def test_isolated():
            pass

        def test_call(run_forked):
            assert run_forked(int, timeout={limit}) == 0
        """)
    result = run_session(pytester)
    assert_no_crash(result)
    result.assert_outcomes(passed=2)
