"""Processes beyond a plain fork: exec'd children, spawn, forkserver, xdist, sessions in sessions."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from tests.plugin.helpers import (
    assert_no_crash,
    check,
    counts,
    failure,
    line_of,
    module,
    outcomes,
    records,
    run_session,
)

EXEC = """
def run(script, *options):
    done = subprocess.run(
        [sys.executable, *options, script], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr

def test_initialize():
    touch()

def test_script_touches():
    assert run("touches.py") == (0, "")

def test_script_forks_and_its_child_touches():
    run("poisons.py")

def test_error_of_the_script():
    status, error = run("poisons.py")
    if status:
        assert "CudaForkError: fork refused" in error
    os.environ["test"] = "fails only for the finding"

def test_script_ignores_the_environment():
    assert run("touches.py", "-I") == (0, "")

def test_clean():
    pass
"""


@pytest.mark.parametrize("level", ["poison", "fork"])
def test_a_script_that_is_started_by_exec_is_clean_and_watched(
    level: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        touches=module("touch()  # in the script\n"),
        poisons=module("touch()  # culprit\nchild(touch)\n"),
    )
    pytester.makepyfile(test_exec=module(EXEC))
    result = check(pytester, level, "--cuda-fork-ledger=kept")
    assert outcomes(result) == {
        "test_initialize": "PASSED",
        "test_script_touches": "PASSED",
        "test_script_forks_and_its_child_touches": "FAILED",
        "test_error_of_the_script": "FAILED",
        "test_script_ignores_the_environment": "PASSED",
        "test_clean": "PASSED",
    }
    named = f"poisons.py:{line_of(pytester.path / 'poisons.py', '# culprit')}"
    story = failure(result, "test_script_forks_and_its_child_touches")
    assert named in story
    assert ("fork refused" in story) == (level == "fork")
    line = line_of(pytester.path / "touches.py", "# in the script")
    touched = [r["stack"][0][:2] for r in records(pytester.path / "kept", "touch")]
    assert [str(pytester.path / "touches.py"), line] in touched
    assert counts(result)["poisoned touches"] == (2 if level == "poison" else 0)


def test_a_script_that_survives_the_session_is_left_in_peace(pytester: pytest.Pytester) -> None:
    script = pytester.makepyfile(
        server=module(
            """
import pathlib, time
while not pathlib.Path("over").exists():
    time.sleep(0.02)
try:
    touch()
    child(touch)
except Exception as error:
    pathlib.Path("answer").write_text(type(error).__name__)
else:
    pathlib.Path("answer").write_text("fine")
"""
        )
    )
    pytester.makepyfile(
        f"""
        import subprocess, sys
        def test_a():
            subprocess.Popen(
                [sys.executable, {str(script)!r}],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )
        """
    )
    result = check(pytester, "poison", "-p", "no:warnings")
    result.assert_outcomes(passed=1)
    (pytester.path / "over").touch()
    answer = pytester.path / "answer"
    wait = f"while [ ! -s {answer} ]; do sleep 0.02; done"
    subprocess.run(["sh", "-c", wait], timeout=30, check=True)
    assert answer.read_text() == "fine"


def test_a_sitecustomize_of_the_users_own_still_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pytester.mkdir("own")
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    pytester.makepyfile(
        module(
            """
def test_a():
    script = "import sys; assert customized; assert not [p for p in sys.path if '_startup' in p]"
    subprocess.run([sys.executable, "-c", script], check=True)
"""
        )
    )
    result = check(pytester, "fork")
    result.assert_outcomes(passed=1)


START_METHODS = """
import helpers_of_test

def run(method, target):
    process = multiprocessing.get_context(method).Process(target=target)
    process.start()
    process.join(30)
    return process.exitcode

def test_initialize():
    touch()

# The children of a server bear the name of the test that started it, so this one comes first.
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_forks_after_its_touch(method):
    run(method, helpers_of_test.touch_and_fork)

@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_clean_start(method):
    assert run(method, helpers_of_test.touch) == 0
"""


def test_spawn_and_forkserver_are_clean_and_what_they_fork_is_not(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        helpers_of_test=module("def touch_and_fork():\n    touch()  # culprit\n    child(touch)\n"),
        test_methods=module(START_METHODS),
    )
    result = check(pytester, "fork")
    assert outcomes(result) == {
        "test_initialize": "PASSED",
        "test_clean_start[spawn]": "PASSED",
        "test_clean_start[forkserver]": "PASSED",
        "test_child_forks_after_its_touch[spawn]": "FAILED",
        "test_child_forks_after_its_touch[forkserver]": "FAILED",
    }
    line = line_of(pytester.path / "helpers_of_test.py", "# culprit")
    for method in ("spawn", "forkserver"):
        story = failure(result, f"test_child_forks_after_its_touch[{method}]")
        assert f"helpers_of_test.py:{line}" in story
        assert "fork refused" in story


INNER = """
def test_initialize():
    touch()

def test_fork():
    child()
"""


def test_a_session_started_by_a_test_keeps_its_findings_to_itself(
    pytester: pytest.Pytester,
) -> None:
    folder = pytester.mkdir("inner")
    (folder / "test_inner.py").write_text(module(INNER))
    (folder / "conftest.py").write_text(module("touch()\n"))
    pytester.makepyfile(
        test_outer=module(
            """
def session(*args):
    command = [sys.executable, "-m", "pytest", "-p", "pytest_cudafork.plugin", *args, "inner"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout

def test_with_the_check():
    status, output = session("--cuda-fork-check")
    assert status == 1, output
    assert "1 failed, 1 passed" in output
    assert "touches: 2 (1 at start-up, 0 at import or collection, 1 in tests)" in output

def test_without_the_check():
    # The inner session is then a process of this test like any other.
    status, output = session()
    assert "cuda-fork" not in output

def test_in_process():
    plugins = ["-p", "pytest_cudafork.plugin", "-p", "no:cacheprovider"]
    status = pytest.main([*plugins, "--cuda-fork-check", "-q", "inner"])
    assert status == 1

def test_clean():
    child()
"""
        )
    )
    result = check(pytester, "fork", "test_outer.py")
    assert_no_crash(result)
    found = outcomes(result)
    assert found["test_with_the_check"] == "PASSED"
    assert found["test_without_the_check"] == "FAILED"
    assert "fork refused" in failure(result, "test_without_the_check")
    assert found["test_in_process"] == "PASSED"
    # A process stays initialized, whichever session it was that touched.
    assert found["test_clean"] == "FAILED"
    assert "too late to fail a test" not in result.stdout.str()


needs_xdist = pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"
)

XDIST = """
def test_clean_before_{n}():
    pass

def test_touch_{n}():
    touch()  # culprit {n}

def test_forks_{n}():
    child()

def test_child_touches_{n}():
    subprocess.run([sys.executable, "poisons.py"])
"""


@needs_xdist
def test_with_xdist_there_is_one_ledger_one_summary_and_the_right_test_fails(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(poisons=module("touch()\nchild(touch)\n"))
    for n in (1, 2):
        pytester.makepyfile(**{f"test_{n}": module(XDIST.format(n=n))})
    args = ("-p", "xdist.plugin", "-n2", "--dist=loadfile", "-rfp", "--cuda-fork-ledger=kept")
    result = run_session(pytester, "--cuda-fork-check", *args)
    assert_no_crash(result)
    text = result.stdout.str()
    result.assert_outcomes(passed=4, failed=4)
    assert text.count("= CUDA and fork =") == 1
    for n in (1, 2):
        for name in (f"test_clean_before_{n}", f"test_touch_{n}"):
            assert f"PASSED test_{n}.py::{name}" in text
        culprit = f"test_{n}.py:{line_of(pytester.path / f'test_{n}.py', f'# culprit {n}')}"
        assert culprit in failure(result, f"test_forks_{n}")
        assert "poisons.py" in failure(result, f"test_child_touches_{n}")
    numbers = counts(result)
    assert numbers["forks guarded"] == 4
    assert numbers["touches"] == numbers["in tests"] == 4
    touches = records(pytester.path / "kept", "touch")
    assert len({touch["owner"] for touch in touches}) == 2


@needs_xdist
def test_with_xdist_a_touch_at_collection_is_nobody_elses_fault(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bad=module("touch()\ndef test_bad(): pass\n"))
    pytester.makepyfile(test_good="def test_good(): pass")
    args = ("-p", "xdist.plugin", "-n2", "-rfpE")
    result = run_session(pytester, "--cuda-fork-check=fork", *args)
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    assert counts(result)["at import or collection"] == 2
    result = run_session(pytester, "--cuda-fork-check=touch", *args)
    assert_no_crash(result)
    assert result.ret != 0
    assert "ERROR test_bad.py" in result.stdout.str()
    assert "FAILED test_good.py" not in result.stdout.str()


@needs_xdist
def test_a_wrong_value_with_xdist_is_still_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "-p", "xdist.plugin", "-n2", "--cuda-fork-check=forks")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)


FORKED_SUITE = """
def test_clean():
    pass

def test_touch():
    touch()

def test_clean_after():
    pass
"""


def _forked_works(pytester: pytest.Pytester) -> bool:
    """Whether pytest-forked is here and works with this pytest at all."""
    if importlib.util.find_spec("pytest_forked") is None:
        return False
    pytester.makepyfile(test_probe="def test_probe(): pass")
    arguments = ("-p", "pytest_forked", "--forked", "test_probe.py")
    result = run_session(pytester, *arguments, plugin=())
    (pytester.path / "test_probe.py").unlink()
    return result.ret == 0 and result.parseoutcomes() == {"passed": 1}


def test_with_pytest_forked_tests_pass_and_a_refused_fork_is_that_tests_error(
    pytester: pytest.Pytester,
) -> None:
    if not _forked_works(pytester):
        pytest.skip("pytest-forked is not installed, or broken with this pytest")
    forked = ("-p", "pytest_forked", "--forked")
    pytester.makepyfile(test_suite=module(FORKED_SUITE))
    result = check(pytester, "fork", *forked)
    assert_no_crash(result)
    assert outcomes(result) == dict.fromkeys(outcomes(result), "PASSED")
    assert len(outcomes(result)) == 3
    # Now the pytest process itself is initialized, so no test may be forked.
    pytester.makeconftest(module("touch()  # culprit\n"))
    result = check(pytester, "fork", *forked)
    assert_no_crash(result)
    result.assert_outcomes(errors=3)
    line = line_of(pytester.path / "conftest.py", "# culprit")
    assert f"conftest.py:{line}" in failure(result, "test_clean")
    # And where forks are let through, the child that touches is the one that fails.
    result = check(pytester, "poison", *forked)
    assert_no_crash(result)
    found = outcomes(result)
    assert found["test_clean"] == found["test_clean_after"] == "PASSED"
    assert found["test_touch"] == "FAILED"


def _leftovers() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"_CUDAFORK_WATCH=" in path.read_bytes():
                found.add(path.parent.name)
        except OSError:
            continue  # it has ended, or is not ours
    return found


ENDINGS = {
    "interrupted": "import signal\ndef test_a():\n    os.kill(os.getpid(), signal.SIGINT)\n",
    "exits": "def test_a():\n    pytest.exit('enough')\n",
    "crashes in a hook": "def test_a():\n    pass\n",
    "ends well": "def test_a():\n    touch()\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_behind_however_the_session_ends(
    ending: str, pytester: pytest.Pytester
) -> None:
    conftest = "import atexit, os, sys\n" + (
        "def names(): return sorted(n for n in os.environ if 'PYTEST_CURRENT' not in n)\n"
        "def report():\n"
        "    left = [n for n in names() if 'CUDAFORK' in n or n == 'TRITON_LIBCUDA_PATH']\n"
        "    print('left in the environment:', left, file=sys.__stderr__)\n"
        "atexit.register(report)\n"
    )
    if ending == "crashes in a hook":
        conftest += "def pytest_runtest_teardown(item, nextitem):\n    pass\n"
        conftest += "def pytest_sessionfinish():\n    raise ValueError('of the hook')\n"
    pytester.makeconftest(conftest)
    pytester.makepyfile(module(ENDINGS[ending]))
    temporary = pytester.mkdir("temporary")
    before = _leftovers()
    environment = {"TMPDIR": str(temporary)}
    result = check(pytester, "fork", "-p", "no:cacheprovider", env=environment)
    assert "left in the environment: []" in result.stderr.str()
    assert os.listdir(temporary) == []
    assert not {pid for pid in _leftovers() - before if _is_below(pid, pytester.path)}
    assert ("ends well" != ending) == (result.ret != 0)


def _is_below(pid: str, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    except OSError:
        return False


def test_a_killed_session_leaves_no_more_than_its_ledger(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module("import signal\ndef test_a():\n    os.kill(os.getpid(), 9)\n"))
    temporary = pytester.mkdir("temporary")
    environment = {"TMPDIR": str(temporary)}
    result = check(pytester, "fork", env=environment)
    assert result.ret == -9
    assert all(name.startswith("pytest-cudafork-") for name in os.listdir(temporary))
