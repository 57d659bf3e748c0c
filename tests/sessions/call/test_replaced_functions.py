"""Calls of functions in a child while functions of the standard library are others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import patched_functions
from tests.support.isolation_compare import Sessions

NEEDED_BELOW = {
    *("contextlib.ExitStack", "os.close", "os.dup2", "os.fsencode", "os.fstat", "os.open"),
    *("os.path.dirname", "os.path.join", "os.pipe", "os.read", "os.waitpid", "re.compile"),
    *("signal.Signals", "subprocess.Popen.poll", "subprocess.Popen.wait", "threading.Lock"),
    "threading.RLock",
    *("subprocess._args_from_interpreter_flags", "traceback.format_exception"),
    "warnings.catch_warnings",
}
"""What parts of the standard library use, and the import system, when a child is started."""

SOURCE = """
import warnings

import pytest



import replacing
from pytest_cudafork import ChildTimeout

ALL = replacing.prepare({names!r})
NEEDED = {needed!r}
HERE = {{name: ALL[name] for name in ALL if name not in NEEDED}}


@pytest.fixture(params=["run_forked", "run_spawned", "run_forkserver"])
def run(request):
    return request.getfixturevalue(request.param)


def double(number):
    return 2 * number


def hang():
    while True:
        pass


def fail(number):
    raise ValueError(number)


def leave_them(number):
    warnings.warn("told")
    replacing.patch(replacing.prepare(list(ALL)))
    return 2 * number


def leave_them_and_fail(number):
    replacing.patch(replacing.prepare(list(ALL)))
    raise ValueError(number)


def test_where_they_are_replaced_a_result_comes_back(run):
    with pytest.MonkeyPatch.context() as patch:
        replacing.patch(HERE, patch.setattr)
        result = run(double, 21)
    assert result == 42


def test_where_they_are_replaced_an_error_comes_back(run):
    with pytest.raises(ValueError, match="21"), pytest.MonkeyPatch.context() as patch:
        replacing.patch(HERE, patch.setattr)
        run(fail, 21)


def test_where_they_are_replaced_a_time_limit_counts(run):
    with pytest.raises(ChildTimeout), pytest.MonkeyPatch.context() as patch:
        replacing.patch(HERE, patch.setattr)
        run(hang, timeout=0.5)


def test_a_function_that_replaces_them_gives_its_result(run):
    with pytest.warns(UserWarning, match="told"):
        assert run(leave_them, 21) == 42


def test_a_function_that_replaces_them_gives_its_error(run):
    with pytest.raises(ValueError, match="21"):
        run(leave_them_and_fail, 21)
"""


@pytest.mark.fresh_interpreter("others have imported filelock, which uses os.getpid at a fork")
def test_a_call_in_a_child_does_not_depend_on_functions_that_were_replaced(tmp_path: Path) -> None:
    pytest_needs = ("os.dup2", "os.fstat")
    names = [one for one in patched_functions.used_functions() if one not in pytest_needs]
    (tmp_path / "replacing.py").write_text(patched_functions.HELPER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(SOURCE.format(names=names, needed=NEEDED_BELOW))
    seen = Sessions(tmp_path, "-rA").run("")
    assert any("15 passed" in line for line in seen.stdout), "\n".join(seen.stdout)
