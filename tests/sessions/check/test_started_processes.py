"""Processes beyond a plain fork: exec'd scripts, spawn, forkserver, sessions in sessions."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from pytest_cudafork.observe.handed_on import STARTUP
from tests.support.sessions import (
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


ORDER = """
def touch_in_a_script():
    code = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
    script = subprocess.Popen([sys.executable, "-c", code])
    assert script.wait() == 0
    return script.pid

def test_a_script_then_this_process_then_a_script():
    before = touch_in_a_script()
    touch()
    print("ORDER", before, os.getpid(), touch_in_a_script())
"""


def test_of_several_processes_it_is_known_which_touched_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module(ORDER))
    result = check(pytester, "fork", "-s", "--cuda-fork-ledger=kept")
    result.assert_outcomes(passed=1)
    (line,) = [each for each in result.outlines if "ORDER " in each]
    order = [int(each) for each in line.partition("ORDER ")[2].split()[:3]]
    touches = records(pytester.path / "kept", "touch")
    assert [touch["pid"] for touch in touches] == order


INHERITED = """
import os, subprocess, sys

def run(shell):
    environ = dict(os.environ)
    environ["PYTHONPATH"] += os.pathsep + os.path.abspath("own")
    return subprocess.run(
        ["sh", "-c", shell], env=environ, stdout=subprocess.PIPE, text=True, timeout=200
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


SUBINTERPRETER = '''
def test_child():
    script = """if True:
        import ctypes
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        try:
            made = interpreters.create("legacy")
        except TypeError:
            made = interpreters.create(isolated=False)
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        getattr(interpreters, "run_string")(made, "print(1, flush=True)")
        print(2, flush=True)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["1", "2"], "")
'''


def test_a_subinterpreter_of_a_child_is_watched_with_its_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import subprocess\nimport sys\n" + SUBINTERPRETER)
    result = check(pytester, "fork")
    result.assert_outcomes(passed=1)
    assert counts(result)["touches"] == 1


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
    touched = [r["stack"][0][:2] for r in records(pytester.path / "kept", "touch") if r["stack"]]
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
    subprocess.run(["sh", "-c", wait], timeout=200, check=True)
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
    process.join(200)
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


STARTS_POISONED = """
code = "import ctypes, os; init = ctypes.CDLL('libcuda.so.1').cuInit; init(0); pid = os.fork();" \\
    "pid or (init(0), os._exit(0)); os.waitpid(pid, 0)"

@pytest.fixture(scope="module")
def started():
    subprocess.run([sys.executable, "-c", code], check=True)

def test_fixture(started):
    pass

def test_exec():
    subprocess.run([sys.executable, "-c", code], check=True)

def test_shell():
    subprocess.run(["sh", "-c", '"$0" -c "$1"; true', sys.executable, code], check=True)

@pytest.mark.cuda_fork_ok(reason="its child is what is tested")
def test_fork():
    touch()
    child(lambda: touch())

def test_clean():
    pass
"""


@pytest.mark.parametrize("method", ["none", "fork", "forkserver", "spawn"])
@pytest.mark.parametrize("scope", ["test", "module"])
def test_what_a_test_starts_fails_the_test_in_whatever_process_it_runs(
    scope: str, method: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=module(STARTS_POISONED))
    result = check(
        pytester, "poison", f"--cuda-fork-isolate={method}", f"--cuda-fork-isolate-scope={scope}"
    )
    told = {name: words.split(" (")[0] for name, words in outcomes(result).items()}
    assert told == {
        "test_fixture": "ERROR",
        "test_exec": "FAILED",
        "test_shell": "FAILED",
        "test_fork": "FAILED",
        "test_clean": "PASSED",
    }
    assert "too late" not in result.stdout.str() + result.stderr.str()


def test_an_older_python_is_left_alone(pytester: pytest.Pytester) -> None:
    """Whose start-up finds the same ``sitecustomize``; it cannot import what follows."""
    older = (
        "import sys; sys.version_info = (3, 9, 18); del sys.orig_argv; import sitecustomize;"
        "assert not any(name.startswith('pytest_cudafork') for name in sys.modules)"
    )
    pytester.makepyfile(
        test_it=module(f"""
def test_old():
    for variables in ({{}}, {{"_CUDAFORK_CAPTURES": "check", "_CUDAFORK_PATCHES": "[]"}}):
        command = [sys.executable, "-S", "-c", {older!r}]
        env = {{**os.environ, **variables}}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
""")
    )
    check(pytester, "fork").assert_outcomes(passed=1)


def test_what_every_python_reads_at_its_start_is_no_syntax_error_for_python_2() -> None:
    """Which would write into the output of its program that the file cannot be imported."""
    source = Path(STARTUP, "sitecustomize.py").read_text(encoding="utf-8")
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.Starred, ast.YieldFrom)
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, (*newer, ast.AsyncFunctionDef)), ast.unparse(node)
        if isinstance(node, ast.FunctionDef):
            words = [node.args.vararg, node.args.kwarg, *node.args.args, node.args]
            assert node.returns is None, node.name
            assert not any(getattr(word, "annotation", None) for word in words), node.name
            assert not node.args.kwonlyargs, node.name
        if isinstance(node, ast.Raise):
            assert node.cause is None, ast.unparse(node)
    assert source.isascii()
