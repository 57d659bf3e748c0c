"""The plugin installed and no option given: a session is as it would be without it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import run_session

pytestmark = pytest.mark.fresh_interpreter(
    "what a process has from its start is what this is about"
)

CONFTEST = """
import json, os, signal, sys, threading

def snapshot():
    with open("/proc/self/maps") as file:
        mapped = {line.split(None, 5)[5].strip() for line in file if "/" in line}
    children = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            children += file.read().split()
    return {
        "environ": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        "path": sys.path,
        "finders": [str(type(finder)) for finder in sys.meta_path],
        "modules": sorted(sys.modules),
        "mapped": sorted(mapped),
        "handlers": {s.name: str(signal.getsignal(s)).split(" at ")[0] for s in signal.Signals},
        "threads": len(threading.enumerate()),
        "tasks": len(os.listdir("/proc/self/task")),
        "children": len(children),
        "files": sorted(os.listdir("/proc/self/fd")),
    }

SEEN = {"conftest": snapshot()}

def pytest_unconfigure():
    SEEN["end"] = snapshot()
    with open("snapshot.json", "w") as file:
        json.dump(SEEN, file)
"""
SUITE = """
import ctypes, os, pytest, subprocess, sys, warnings
from conftest import SEEN, snapshot

def test_snapshot():
    SEEN["test"] = snapshot()

def test_no_driver():
    with pytest.raises(OSError):
        ctypes.CDLL("libcuda-that-is-not-there.so.1")

def test_forks():
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3

def test_starts_a_script():
    script = "import os, sys; print(len(os.environ), len(sys.path), len(sys.modules))"
    print(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout)
    assert 0

def test_fails():
    raise ValueError("own")

def test_warns():
    warnings.warn("own")

@pytest.mark.skip(reason="own")
def test_skips():
    pass

@pytest.mark.xfail
def test_expected():
    assert 0

@pytest.fixture
def broken():
    yield
    raise ValueError("teardown")

def test_broken(broken):
    pass
"""


def _run(
    pytester: pytest.Pytester, plugin: tuple[str, ...]
) -> tuple[pytest.RunResult, dict[str, Any]]:
    result = run_session(pytester, "-v", "-rA", plugin=plugin)
    return result, json.loads(Path("snapshot.json").read_text(encoding="utf-8"))


def _words(text: str) -> list[str]:
    """The output without what differs between any two runs."""
    # A longer time makes its line's marks fewer.
    text = re.sub(r"^=+ (.*) in \d+\.\d+s( \([\d:]+\))? =+$", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"runpytest-\d+|0x[0-9a-f]+", "", text)
    return [line for line in text.splitlines() if not line.startswith("plugins:")]


def test_output_environment_and_interpreter_are_as_without_the_plugin(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    without, bare = _run(pytester, ())
    installed, seen = _run(pytester, ("-p", "pytest_cudafork.plugin"))
    assert _words(installed.stdout.str()) == _words(without.stdout.str())
    assert installed.stderr.str() == without.stderr.str()
    assert installed.ret == without.ret
    for moment in ("conftest", "test", "end"):
        extra = set(seen[moment].pop("modules")) - set(bare[moment].pop("modules"))
        # pytest imports faulthandler in each session, too, only after the first conftests
        assert {name.partition(".")[0] for name in extra} <= {"pytest_cudafork", "faulthandler"}
        assert seen[moment] == bare[moment]


def test_no_hook_of_the_interpreter_is_registered(pytester: pytest.Pytester) -> None:
    # Audit hooks and at-fork handlers cannot be listed, so the calls that add them are counted.
    pytester.makepyfile(
        start="""
        import os, sys
        calls = []
        sys.addaudithook_, register = sys.addaudithook, os.register_at_fork
        def addaudithook(hook):
            calls.append(hook)
            sys.addaudithook_(hook)
        def register_at_fork(**hooks):
            if "logging" not in str(hooks) and "random" not in str(hooks):
                calls.append(hooks)
            register(**hooks)
        import asyncio, concurrent.futures.thread, logging, random, tempfile, threading
        sys.addaudithook, os.register_at_fork = addaudithook, register_at_fork
        import pytest
        status = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:], "test_a.py"])
        print("calls:", len(calls))
        sys.exit(status)
        """,
        test_a="""
        import os
        def test_a():
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.wait()
        """,
    )
    without = pytester.runpython_c(_start(("-p", "cudafork")))
    without.stdout.fnmatch_lines(["1 passed*", "calls: 0"])
    # The same count sees them where the check is on.
    checked = pytester.runpython_c(_start(("-p", "cudafork", "--cuda-fork-check")))
    checked.stdout.fnmatch_lines(["1 passed*", "calls: [1-9]"])


def _start(args: tuple[str, ...]) -> str:
    return f"import runpy, sys; sys.argv = ['start.py', *{args!r}]; runpy.run_path('start.py')"


def test_the_internal_variables_of_another_session_start_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_CUDAFORK_WATCH", "no json")
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester)
    result.assert_outcomes(passed=1)
    assert "cuda-fork" not in result.stdout.str()
    result = run_session(pytester, "--cuda-fork-check")
    result.assert_outcomes(passed=1)
