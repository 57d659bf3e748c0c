"""Isolated tests beside a conftest that changes what holds for the whole process."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS
from tests.support.sessions import run_session

SETTINGS = {
    "children are forgotten, sockets have a time limit": """
        import signal, socket, time

        HANDLER = signal.SIG_IGN
        signal.signal(signal.SIGCHLD, HANDLER)
        socket.setdefaulttimeout(0.05)

        def pytest_runtest_call(item):
            time.sleep(0.2)  # longer than any socket waits
        """,
    "a handler reaps whatever has ended": """
        import os, signal

        def HANDLER(*args):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass

        signal.signal(signal.SIGCHLD, HANDLER)
        """,
}

BOTH = """
import signal

def pytest_sessionfinish():
    assert signal.getsignal(signal.SIGCHLD) is HANDLER
"""

SUITE = """
import os
import signal
import socket
import subprocess

import pytest
from conftest import HANDLER

def test_passes():
    pass

def test_has_what_the_conftest_has_set():
    assert signal.getsignal(signal.SIGCHLD) is HANDLER

def test_starts_a_program():
    assert subprocess.run(["true"]).returncode == 0

def test_dies():
    os._exit(3)

@pytest.mark.parametrize("name", ["run_forked", "run_spawned", "run_forkserver"])
def test_calls(request, name):
    assert request.getfixturevalue(name)(len, "four") == 4

def test_is_not_affected():
    pass
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_they_change_nothing_for_healthy_tests_and_dead_ones_are_told(
    pytester: pytest.Pytester, settings: str, method: str
) -> None:
    pytester.makeconftest(settings)
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + BOTH)
    pytester.makepyfile(test_it=SUITE)
    result = run_session(pytester, f"--cuda-fork-isolate={method}")
    result.assert_outcomes(passed=7, failed=1)
    result.stdout.fnmatch_lines(["ChildCrashed: exit status 3 in call: *"])


def test_where_another_thread_takes_the_exit_status_the_report_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("""
        import os, threading, time

        def reap():
            while True:
                try:
                    os.waitpid(-1, 0)
                except ChildProcessError:
                    time.sleep(0.001)

        threading.Thread(target=reap, daemon=True).start()

        # It is the first to be told, however busy this machine is.
        from pytest_cudafork.process.supervision import Supervisor

        def _clean_up(self, clean_up=Supervisor._clean_up):
            until = time.monotonic() + 120
            while self._dead() and os.path.exists(f"/proc/{self.running.pid}"):
                assert time.monotonic() < until
                time.sleep(0.001)
            return clean_up(self)

        Supervisor._clean_up = _clean_up
    """)
    pytester.makepyfile("""
        import os

        def test_dies(): os._exit(0)

        def test_passes(): pass
    """)
    result = run_session(pytester, "--cuda-fork-isolate=fork")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["ChildCrashed: * something else in this process has waited *"])
