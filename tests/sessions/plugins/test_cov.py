"""Isolated tests with pytest-cov and coverage.py: both measure what they do in one process."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support import interpreters
from tests.support.isolation import METHODS
from tests.support.isolation_plugins import FORKS, needs, same, write
from tests.support.sessions import TIME_LIMIT

FILES = {
    "pkg/__init__.py": "",
    "pkg/early.py": """
        import sys

        if sys.argv:
            AT_IMPORT = 1
        else:
            AT_IMPORT = 2

        def used(x):
            if x:
                return 1
            return 2

        def unused():
            return 3
    """,
    "pkg/lazy.py": """
        import threading

        VALUES = [n for n in range(3) if n]

        def in_a_thread():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        def work():
            for n in range(2):
                if n > 5:
                    return n

        def fixture_part():
            return 1

        def hidden():
            return 2
    """,
    "pkg/never.py": "X = 1\n",
    "conftest.py": """
        import pytest

        @pytest.fixture
        def part():
            from pkg import lazy
            yield lazy.fixture_part()
            print(lazy.VALUES)
    """,
    "test_it.py": """
        import pytest
        from pkg import early

        @pytest.mark.parametrize("x", [0, 1])
        def test_used(x):
            assert early.used(x) == 2 - x

        def test_lazy():
            from pkg import lazy
            lazy.in_a_thread()

        def test_part(part):
            assert part == 2

        @pytest.mark.no_cover
        def test_no_cover():
            from pkg import lazy
            lazy.hidden()

        def test_skips():
            early.used(0)
            pytest.skip("after work")
    """,
    ".coveragerc": "[run]\nsource = pkg\n[json]\nshow_contexts = true\n",
}
CORES = ["ctrace", "pytrace", *(["sysmon"] if sys.version_info >= (3, 12) else [])]


def _report(path: Path) -> Any:
    """Return a JSON report without its date, with contexts in order."""
    report = json.loads(path.read_text(encoding="utf-8"))
    del report["meta"]["timestamp"]
    return report


def _same_report(
    tmp_path: Path,
    *options: str,
    plugins: tuple[str, ...] = (),
    files: dict[str, str] = FILES,
) -> Any:
    """Return the report, which is the same in one process and by each method."""
    run = " ".join(["--cov=pkg", "--cov-report=json:cov.json", "--cov-report=term", *options])
    names = ["cov", *plugins]
    if "xdist" in plugins:
        for how in ("", *METHODS):
            path = tmp_path / (how or "before")
            write(path, files)
            _pytest(path, how, *run.split(), plugins=names)
    else:
        same(tmp_path, METHODS, names, files, run)
    return _the_report_of_all(tmp_path)


def _the_report_of_all(tmp_path: Path) -> Any:
    """Return the report of the session in one process, which is that of each method."""
    expected = _report(tmp_path / "before" / "cov.json")
    for method in METHODS:
        _assert_no_data_left(tmp_path / method)
        assert _report(tmp_path / method / "cov.json") == expected, method
    return expected


def _pytest(path: Path, method: str, *options: str, plugins: list[str], start: str = "") -> str:
    """Run a session, by ``coverage run`` if ``start`` says so, and return what it shows."""
    command = [sys.executable, *(start or "-m pytest").split(), "-p", "pytest_cudafork.plugin"]
    for plugin in plugins:
        command += ["-p", needs(plugin)]
    env = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_CUDA_FORK_ISOLATE": method or "none",
    }
    done = interpreters.run([*command, *options], cwd=path, env=env, timeout=TIME_LIMIT)
    assert "1 failed, 4 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    return done.stdout


def _assert_no_data_left(path: Path) -> None:
    left = sorted(found.name for found in path.glob(".coverage*"))
    assert left == [".coverage", ".coveragerc"]


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("branch", ["", "--cov-branch"])
def test_pytest_cov_measures_the_same(
    tmp_path: Path, branch: str, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("cov")
    monkeypatch.setenv("COVERAGE_CORE", core)
    report = _same_report(tmp_path, *branch.split())
    lazy = report["files"]["pkg/lazy.py"]
    missing = [line for line in lazy["missing_lines"] if line > 2]
    assert len(missing) == 2, "the hidden function and the return"
    assert report["files"]["pkg/never.py"]["summary"]["percent_covered"] == 0


def test_contexts_of_pytest_cov_name_the_same_tests(tmp_path: Path) -> None:
    needs("cov")
    # Else the import belongs to one test in one process, and to each in processes of their own.
    early = "import pkg.lazy\n" + textwrap.dedent(FILES["conftest.py"])
    files = {**FILES, "conftest.py": early}
    report = _same_report(tmp_path, "--cov-context=test", files=files)
    assert report["totals"]["percent_covered"] > 50


def test_pytest_cov_measures_the_same_in_the_workers_of_xdist(tmp_path: Path) -> None:
    needs("xdist")
    _same_report(tmp_path, "-n2", plugins=("xdist",))


@pytest.mark.parametrize("parallel", [False, True])
def test_coverage_run_measures_the_same(tmp_path: Path, parallel: bool) -> None:
    needs("cov")
    for how in ("", *METHODS):
        path = tmp_path / (how or "before")
        write(path, FILES)
        files = {".coveragerc": f"[run]\nsource = pkg\nbranch = true\nparallel = {parallel}\n"}
        write(path, files)
        _pytest(path, how, plugins=[], start="-m coverage run -m pytest")
        commands = ["combine"] if parallel else []
        for command in [*commands, "json -q -o cov.json"]:
            arguments = [sys.executable, "-m", "coverage", *command.split()]
            done = interpreters.run(arguments, cwd=path, timeout=TIME_LIMIT)
            assert done.returncode == 0, done.stdout + done.stderr
    _the_report_of_all(tmp_path)


@pytest.mark.parametrize("patches", ["subprocess", "_exit", "subprocess, _exit"])
def test_what_coverage_measures_in_processes_that_tests_start_is_the_same(
    tmp_path: Path, patches: str
) -> None:
    needs("cov")
    files = {
        **FILES,
        "conftest.py": "import pkg.lazy\n" + textwrap.dedent(FILES["conftest.py"]),
        ".coveragerc": FILES[".coveragerc"].replace("[run]", f"[run]\npatch = {patches}"),
        "test_starts.py": """
            import os, subprocess, sys
            from pkg import early

            def test_starts():
                code = "import pkg.never"
                env = {**os.environ, "PYTHONPATH": os.getcwd()}
                subprocess.run([sys.executable, "-c", code], check=True, env=env)

            def forks(work):
                pid = os.fork()
                if pid == 0:
                    work()
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0

            def test_forks():
                forks(early.unused)

            def test_forks_a_process_that_runs_nothing_measured():
                forks(int)

            def test_passes_after_it():
                early.used(1)
        """,
    }
    report = _same_report(tmp_path, "--cov-context=test", files=files)
    reached = {name: found["missing_lines"] for name, found in report["files"].items()}
    assert ("subprocess" in patches) == (reached["pkg/never.py"] == [])
    assert ("_exit" in patches) == (reached["pkg/early.py"] == [7])


@pytest.mark.parametrize("method", FORKS)
def test_what_a_dead_child_measured_costs_nothing_else(tmp_path: Path, method: str) -> None:
    needs("cov")
    write(tmp_path, {**FILES, "test_dies.py": "import os\ndef test_dies(): os._exit(3)\n"})
    options = ("--cov=pkg", "--cov-report=term", "--deselect", "test_it.py::test_skips")
    command = [sys.executable, "-m", "pytest", "-p", "pytest_cudafork.plugin", "-p", needs("cov")]
    env = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_CUDA_FORK_ISOLATE": method,
    }
    done = interpreters.run([*command, *options], cwd=tmp_path, env=env, timeout=TIME_LIMIT)
    assert "2 failed, 4 passed" in done.stdout, done.stdout
    assert "pkg/lazy.py" in done.stdout
    _assert_no_data_left(tmp_path)
