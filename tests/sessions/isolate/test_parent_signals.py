"""Tests of signals to the pytest process alone while an isolated test runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.support.death import METHODS, module_of, noted
from tests.support.isolation import CONFTEST, is_gone
from tests.support.sessions import TIME_LIMIT, run_session

NEVER = 'def test_never(): open("NEVER", "w").close()'
BODY = f"""
def test_first(): pass
def test_waits():
    note(os.getpid())
    note(subprocess.Popen(["sleep", "1000"]).pid)
    open("READY", "w").close()
    time.sleep(1000)
{NEVER}
"""
DETACHED = BODY.replace('"1000"]', '"1000"], start_new_session=True')
"""A test whose descendant is in a session of its own."""
SECONDS = 120
"""Far more than the second it should take, far less than the test would: others work here, too."""


def start(
    pytester: pytest.Pytester, method: str, conftest: str = "", body: str = BODY
) -> subprocess.Popen[bytes]:
    """Start a session and wait until its second test runs."""
    pytester.makeconftest(CONFTEST.format(method=method, timeout=2000) + conftest)
    pytester.makepyfile(test_d=module_of(pytester, body))
    output_file = pytester.path / "output"
    with output_file.open("wb") as output, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        process: subprocess.Popen[bytes] = pytester.popen(
            [*pytester._getpytestargs(), "-p", "pytest_cudafork.plugin", "-v"],
            stdout=output.fileno(),
            stderr=output.fileno(),
            start_new_session=True,
        )
    until = time.monotonic() + TIME_LIMIT
    while time.monotonic() < until:
        if (pytester.path / "READY").exists():
            return process
        assert process.poll() is None, output_of(pytester)
        time.sleep(0.05)
    process.kill()
    pytest.fail(f"the test did not start:\n{output_of(pytester)}")


def output_of(pytester: pytest.Pytester) -> str:
    """Return what the session has written so far."""
    return (pytester.path / "output").read_text(errors="replace")


def end(pytester: pytest.Pytester, process: subprocess.Popen[bytes]) -> str:
    """Wait for the end of the session, check that no process is left, and return the output."""
    try:
        process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()
    pids = noted(pytester)
    assert len(pids) == 2
    assert [pid for pid in pids if not is_gone(pid)] == []
    assert not (pytester.path / "NEVER").exists()
    return output_of(pytester)


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_ends_the_children_and_prints_the_summary(
    pytester: pytest.Pytester, method: str
) -> None:
    process = start(pytester, method, body=DETACHED)
    process.send_signal(signal.SIGINT)
    output = end(pytester, process)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "! KeyboardInterrupt !" in output
    assert "1 passed in" in output


@pytest.mark.parametrize("method", METHODS)
def test_sigterm_ends_the_children_and_prints_the_summary(
    pytester: pytest.Pytester, method: str
) -> None:
    process = start(pytester, method, body=DETACHED)
    process.send_signal(signal.SIGTERM)
    output = end(pytester, process)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Exit: SIGTERM came while test_d.py::test_waits ran" in output
    assert "1 passed in" in output


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL])
@pytest.mark.parametrize("method", METHODS)
def test_a_signal_that_kills_pytest_ends_the_children_and_all_that_they_have_started(
    pytester: pytest.Pytester, method: str, number: signal.Signals
) -> None:
    process = start(pytester, method, body=DETACHED)
    os.killpg(process.pid, number)  # as a terminal does
    process.wait()
    assert process.returncode == -number
    child, grandchild = noted(pytester)
    assert is_gone(child)
    assert is_gone(grandchild)


EXITS = """
import os, threading, time
def leave():
    while not os.path.exists("READY"): time.sleep(0.02)
    os._exit(3)
if "_CUDAFORK_ISOLATED" not in os.environ:
    threading.Thread(target=leave, daemon=True).start()
"""


@pytest.mark.parametrize("method", METHODS)
def test_an_end_of_pytest_without_a_word_ends_the_children_and_all_that_they_have_started(
    pytester: pytest.Pytester, method: str
) -> None:
    process = start(pytester, method, EXITS, DETACHED)
    end(pytester, process)
    assert process.returncode == 3


SHARED = """
def test_leaves():
    note(os.getpid())
    note(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
def test_fails(): assert os.kill(OTHER, 0) is None and False
def test_never(): open("NEVER", "w").close()
"""
IN_A_HOOK = """
import os, pytest
def pytest_runtest_logreport(report):
    if report.when == "call" and report.failed: END
"""


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("pass", 1),  # by -x
        ("pytest.exit('enough', 5)", 5),
        ("raise KeyboardInterrupt", 2),
        ("raise ValueError", 3),
        ("os._exit(7)", 7),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_an_end_of_the_session_between_tests_ends_their_process_and_all_that_it_has_started(
    pytester: pytest.Pytester, method: str, how: str, status: int
) -> None:
    pytester.makeconftest(IN_A_HOOK.replace("END", how))
    body = SHARED.replace("OTHER", f"int(open({str(pytester.path / 'notes')!r}).readlines()[1])")
    pytester.makepyfile(test_d=module_of(pytester, body))
    args = (f"--cuda-fork-isolate={method}", "--cuda-fork-isolate-scope=module", "-x")
    result = run_session(pytester, *args)
    assert result.ret == status
    pids = noted(pytester)
    assert len(pids) == 2
    assert [pid for pid in pids if not is_gone(pid)] == []
    assert not (pytester.path / "NEVER").exists()


@pytest.mark.parametrize("fixture", ["run_forked", "run_spawned", "run_forkserver"])
def test_a_signal_that_kills_pytest_ends_what_a_call_has_started(
    pytester: pytest.Pytester, fixture: str
) -> None:
    body = f"""
def waits():
    note(os.getpid())
    note(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    open("READY", "w").close()
    time.sleep(1000)
def test_inproc({fixture}): {fixture}(waits)
"""
    process = start(pytester, "fork", body=body)
    process.kill()
    process.wait()
    assert [is_gone(pid) for pid in noted(pytester)] == [True, True]


OWN_HANDLER = """
import os, signal
def mine(number, frame):
    open("HANDLED", "w").close()
if "_CUDAFORK_ISOLATED" not in os.environ:
    signal.signal(signal.SIGTERM, mine)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_handler_of_the_user_for_sigterm_is_respected(
    pytester: pytest.Pytester, method: str
) -> None:
    waits = 'while not os.path.exists("HANDLED"): time.sleep(0.02)'
    body = BODY.replace("time.sleep(1000)", waits).replace(NEVER, "def test_more(): pass")
    process = start(pytester, method, OWN_HANDLER, body)
    process.send_signal(signal.SIGTERM)
    output = end(pytester, process)
    assert process.returncode == 0, output
    assert (pytester.path / "HANDLED").exists()
    assert "3 passed in" in output


def test_sigterm_means_to_the_test_what_it_meant_before(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.format(method="fork", timeout=300))
    pytester.makepyfile(
        """
        import os, signal
        def test_default():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        def test_again():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        def test_inproc():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """
    )
    run_session(pytester).assert_outcomes(passed=3)
