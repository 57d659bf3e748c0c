"""Surroundings in which a check once told wrongly or broke: each was found by reading the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sessions.check.test_other_plugins import needs_xdist
from tests.support.helpers import (
    assert_no_crash,
    counts,
    module,
    needs_torch,
    run_session,
)


def run_python(code: str, cwd: Path) -> str:
    """Run a script in an interpreter of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_torch
def test_the_same_lines_touch_in_every_test_that_runs_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest, torch

        @pytest.fixture
        def gpu():
            return torch.cuda.is_available()

        @pytest.mark.parametrize("n", [1, 2])
        def test_body(n):
            torch.cuda.is_available()
            torch.cuda.is_available()

        def test_fixture_1(gpu):
            pass

        def test_fixture_2(gpu):
            pass
        """)
    result = run_session(pytester, "--cuda-fork-check=touch")
    assert_no_crash(result)
    result.assert_outcomes(failed=2, errors=2)


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


def test_isolation_works_without_pytests_debugging_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.cuda_isolated(method="fork")
        def test_isolated():
            pass
        """)
    result = run_session(pytester, "-p", "no:debugging")
    assert_no_crash(result)
    result.assert_outcomes(passed=1)


def test_a_mock_in_the_place_of_torch_says_nothing_about_cuda(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import sys
        from unittest.mock import MagicMock

        sys.modules["torch"], sys.modules["torch.cuda"] = MagicMock(), MagicMock()
        """)
    pytester.makepyfile(
        module("""
def test_forks():
    child()

def test_state(cuda_state):
    assert cuda_state().safe_to_fork

def test_phantom(phantom_cuda):
    pass
""")
    )
    result = run_session(pytester, "--cuda-fork-check")
    assert_no_crash(result)
    result.assert_outcomes(passed=3)


@needs_xdist
def test_a_fork_refused_around_a_test_reaches_the_controller_of_xdist(
    pytester: pytest.Pytester,
) -> None:
    # As pytest-forked forks: outside any phase of the test.
    pytester.makeconftest("""
        import os
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item):
            os.fork()
        """)
    pytester.makepyfile(module("touch()\n\n@pytest.mark.usefixtures()\ndef test_a():\n    pass\n"))
    result = run_session(pytester, "-p", "xdist.plugin", "-n1", "--cuda-fork-check")
    assert_no_crash(result)
    result.assert_outcomes(errors=1)
    assert counts(result)["forks guarded"] == 1


def test_a_session_inside_leaves_the_ledger_it_inherited_by_name_alone(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        inner=module("def test_in():\n    pass\n"),
        test_outer=module("""
def test_touch():
    touch()

def test_session_inside():
    command = [sys.executable, "-m", "pytest", "-p", "pytest_cudafork.plugin", "inner.py"]
    assert subprocess.run(command).returncode == 0

def test_poisoned():
    child(touch)
"""),
    )
    kept = pytester.path / "kept.jsonl"
    variables = {"PYTEST_CUDA_FORK_CHECK": "poison", "PYTEST_CUDA_FORK_LEDGER": str(kept)}
    result = run_session(pytester, "test_outer.py", env=variables)
    assert_no_crash(result)
    result.assert_outcomes(passed=2, failed=1)
    assert "something that was not seen" not in result.stdout.str()
    assert counts(result)["touches"] == 2
    assert f"ledger: {kept}" in result.stdout.str()


def test_a_test_that_closes_all_files_hides_nothing_and_loses_none_of_its_own(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module("""
opened = []

def test_close():
    os.closerange(3, 64)

def test_open():
    opened.extend(os.open(__file__, os.O_RDONLY) for _ in range(40))

def test_touch():
    touch()

def test_position():
    assert [os.lseek(fd, 0, os.SEEK_CUR) for fd in opened] == [0] * 40
""")
    )
    result = run_session(pytester, "-s", "--cuda-fork-check=touch")
    assert_no_crash(result)
    result.assert_outcomes(failed=1, passed=3)
    assert "Bad file descriptor" not in result.stderr.str()


def test_the_guard_loads_no_lazy_module(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("print('loaded')")
    told = run_python(
        """
import importlib.util, os, sys
sys.path.insert(0, "")
spec = importlib.util.find_spec("heavy")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["heavy"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from pytest_cudafork.check.guard import Rules, install
undo = install(Rules(None, refuse=True))
print(os.fork.__name__)
undo()
""",
        tmp_path,
    )
    assert told == "fork\n"


def test_a_name_imported_during_the_session_is_given_back_too(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("from os import fork as split")
    told = run_python(
        """
import os, sys
sys.path.insert(0, "")
real = [os.fork]  # in a list, where the guard does not look
from pytest_cudafork.check.guard import Rules, install
undo = install(Rules(None, refuse=True))
import late
print(late.split is real[0])
undo()
print(late.split is real[0], os.fork is real[0])
""",
        tmp_path,
    )
    assert told == "False\nTrue True\n"


INHERITED = """
import os, subprocess, sys

def run(shell):
    environ = dict(os.environ)
    environ["PYTHONPATH"] += os.pathsep + os.path.abspath("own")
    return subprocess.run(
        ["sh", "-c", shell], env=environ, stdout=subprocess.PIPE, text=True, timeout=60
    )

def test_told():
    done = run(f"{sys.executable} -c 'print(1)' 2>&1")
    assert done.returncode == 0
    assert "is not watched" in done.stdout
    assert done.stdout.endswith("own sitecustomize\\n1\\n")

def test_without_stderr():
    done = run(f"{sys.executable} -c 'print(1)' 2>&-")
    assert (done.returncode, done.stdout) == (0, "own sitecustomize\\n1\\n")
"""


def test_a_child_that_cannot_be_watched_runs_all_the_same(pytester: pytest.Pytester) -> None:
    own = pytester.mkdir("own")
    (own / "sitecustomize.py").write_text("print('own sitecustomize')")
    (own / "ctypes.py").write_text("raise ImportError('built without it', name='_ctypes')")
    pytester.makepyfile(INHERITED)
    result = run_session(pytester, "--cuda-fork-check")
    assert_no_crash(result)
    result.assert_outcomes(passed=2)


def test_a_child_whose_python_is_too_old_for_the_plugin_runs_all_the_same(
    pytester: pytest.Pytester,
) -> None:
    own = pytester.mkdir("own")
    (own / "sitecustomize.py").write_text("print('own sitecustomize')")
    # Stands for a Python that cannot run this package: it fails with what is no ImportError.
    (own / "json.py").write_text("raise SyntaxError('unknown to this Python')")
    pytester.makepyfile(INHERITED.replace('assert "is not watched" in done.stdout', ""))
    result = run_session(pytester, "--cuda-fork-check")
    assert_no_crash(result)
    result.assert_outcomes(passed=2)


def test_a_late_answer_of_the_fork_server_answers_no_other_request(tmp_path: Path) -> None:
    told = run_python(
        """
import os, signal
from pytest_cudafork.call.run import new_server, run_in_child

server = new_server()

def run():
    return run_in_child("forkserver", int, timeout=20, server=server)

def alarm(*args):
    os.kill(server.pid, signal.SIGCONT)
    raise TimeoutError("alarm")

run()
signal.signal(signal.SIGALRM, alarm)
os.kill(server.pid, signal.SIGSTOP)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    run()
except TimeoutError:
    print("interrupted", run(), run())
server.close()
""",
        tmp_path,
    )
    assert told == "interrupted 0 0\n"
