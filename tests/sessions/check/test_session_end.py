"""How sessions end: nothing of them is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.marked_processes import marked_processes
from tests.support.sessions import TIME_LIMIT, check, module, records

WATCHED = "_CUDAFORK_WATCH="
"""What the environment of all processes of a session has."""

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
    before = marked_processes(WATCHED)
    environment = {"TMPDIR": str(temporary)}
    result = check(pytester, "fork", "-p", "no:cacheprovider", env=environment)
    assert "left in the environment: []" in result.stderr.str()
    assert os.listdir(temporary) == []
    assert not {
        pid for pid in marked_processes(WATCHED).keys() - before if _is_below(pid, pytester.path)
    }
    assert (ending != "ends well") == (result.ret != 0)


def _is_below(pid: int, folder: Path) -> bool:
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


LATE = """
import atexit

def late():
    touch()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    print("forked", file=sys.__stderr__)

atexit.register(late)
"""


def test_what_comes_after_pytest_is_not_judged_as_the_documentation_says(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(module(LATE))
    pytester.makepyfile("def test_a(): pass")
    result = check(pytester, "touch")
    assert result.stderr.str().split() == ["forked"]
    assert result.ret == 0


def test_a_watched_program_that_is_pytest_is_judged_to_the_end_of_its_process(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(module(LATE))
    pytester.makepyfile("def test_a(): pass")
    command = (sys.executable, "-m", "pytest_cudafork", "run", "--fail", "--guard")
    pytest_command = ("-m", "pytest", "--cuda-fork-check=touch", "--cuda-fork-device=phantom")
    result = pytester.run(*command, *pytest_command, timeout=TIME_LIMIT)
    text = result.stderr.str()
    assert "fork refused at conftest.py" in text
    assert "forked" not in text.splitlines()
    assert result.ret == 1


ESCAPES = """
import time
def test_a():
    touch()

@pytest.mark.cuda_fork_ok(reason="the child is what is tested")
def test_b():
    pid = os.fork()
    if pid == 0:
        touch()
        return  # a bug: the child goes on with the session, to its end
    os.waitpid(pid, 0)

def test_c():
    pass
"""


def test_a_forked_child_that_comes_to_the_end_takes_nothing_from_the_session(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=module(ESCAPES))
    temporary = pytester.mkdir("temporary")
    options = ["-p", "no:cacheprovider", "--cuda-fork-json=it.json"]
    result = check(pytester, "poison", *options, env={"TMPDIR": str(temporary)})
    found = json.loads((pytester.path / "it.json").read_text())["check"]
    assert [finding["test"] for finding in found["findings"]] == ["test_it.py::test_b"]
    assert (len(found["touches"]), found["lost"]) == (2, [])
    assert "cannot be read" not in result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert os.listdir(temporary) == []


def test_such_a_child_writes_no_end_of_the_session_and_no_baseline(
    pytester: pytest.Pytester,
) -> None:
    dies = ESCAPES.replace("os.waitpid(pid, 0)", "os.waitpid(pid, 0); os.kill(os.getpid(), 9)")
    pytester.makepyfile(test_it=module(dies))
    result = check(
        pytester,
        "poison",
        "--cuda-fork-ledger=it.ledger",
        "--cuda-fork-baseline=known.toml",
        "--cuda-fork-baseline-update",
    )
    assert result.ret == -signal.SIGKILL
    assert [record["k"] for record in records(pytester.path / "it.ledger")].count("end") == 0
    assert not (pytester.path / "known.toml").exists()


@pytest.mark.parametrize(
    ("level", "does"),
    [
        ("touch", "touch()"),
        ("fork", "touch()\n    try:\n        os.fork()\n    except Exception:\n        pass"),
        ("fork", "touch()\n    try:\n        os.fork()\n    except Exception:\n        leave()"),
    ],
)
def test_an_error_in_a_test_that_ends_the_session_well_is_told_and_fails_it(
    level: str, does: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        module(
            "def leave():\n    pytest.exit('enough', returncode=0)\n\n"
            f"def test_a():\n    {does}\n    leave()\n"
        )
    )
    result = check(pytester, level)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: *::test_a, too late to fail a test:"])
