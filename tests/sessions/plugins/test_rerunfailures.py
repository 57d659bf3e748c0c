"""Isolated tests with pytest-rerunfailures."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import interpreters
from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.isolation_plugins import FORKS, needs, same
from tests.support.sessions import TIME_LIMIT, check, module

FLAKY = """
    import os
    import pytest

    def _count(name):
        with open(name, "a") as file:
            file.write("x")
        return os.path.getsize(name)

    def test_third_time():
        print("in the test")
        assert _count("third") == 3

    @pytest.fixture
    def flaky_setup():
        assert _count("setup") == 2
        yield
        print("torn down")

    def test_setup(flaky_setup):
        pass

    def test_never():
        assert _count("never") == 0

    @pytest.mark.flaky(reruns=1)
    def test_marked():
        assert _count("marked") == 2

    def test_good():
        pass
"""


def test_reruns_of_rerunfailures_happen_and_are_counted(tmp_path: Path) -> None:
    runs = ("--reruns=2", "-rR")
    for seen in same(tmp_path, METHODS, ["rerunfailures"], {"test_it.py": FLAKY}, *runs).values():
        counts = [line for line in seen[0].stdout if "4 passed" in line and "6 rerun" in line]
        assert counts, seen[0].stdout


def test_reruns_stop_at_the_limit_of_the_suite(tmp_path: Path) -> None:
    same(
        tmp_path,
        FORKS,
        ["rerunfailures"],
        {"test_it.py": FLAKY},
        "--reruns=2 --max-suite-reruns=3",
    )


BESIDE_XDIST = ("-p", "xdist", "-p", "rerunfailures")
"""By these names, under which pytest finds them by itself, the two know of each other."""


def test_beside_xdist_a_test_keeps_its_method_and_the_limit_of_the_suite(tmp_path: Path) -> None:
    needs("rerunfailures")
    needs("xdist")
    options = (*BESIDE_XDIST, "--reruns=2", "--max-suite-reruns=3")
    methods = ("auto", *METHODS)
    found = same(tmp_path, methods, [], {"test_it.py": FLAKY}, " ".join(options))
    for (seen,) in found.values():
        assert any("3 rerun" in line for line in seen.stdout), seen.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two workers"])
def test_beside_xdist_the_fork_server_has_no_thread(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    needs("rerunfailures")
    needs("xdist")
    source = (
        "import os, threading\n"
        "def test_flaky():\n"
        "    assert threading.active_count() == 1\n"
        "    with open('count', 'a') as file: file.write('x')\n"
        "    assert os.path.getsize('count') == 2\n"
        "def test_crash():\n"
        "    with open('crashes', 'a') as file: file.write('x')\n"
        "    if os.path.getsize('crashes') < 2: os._exit(3)\n"
    )
    (tmp_path / "test_it.py").write_text(source)
    options = ("-v", "--reruns=2", "--cuda-fork-isolate=forkserver")
    result = interpreters.run(
        [sys.executable, "-m", "pytest", "-p", "cudafork", *BESIDE_XDIST, *workers, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout=TIME_LIMIT,
    )
    assert result.stdout.count("RERUN (forkserver)") == 2, result.stdout
    assert result.stdout.count("PASSED (forkserver)") == 2, result.stdout
    assert "2 passed, 2 rerun" in result.stdout


@pytest.mark.parametrize("method", METHODS)
def test_a_teardown_here_that_fails_behind_an_isolated_test_is_an_error_of_that_test(
    tmp_path: Path, method: str
) -> None:
    module = needs("rerunfailures")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def resource():\n"
        "    yield\n"
        "    raise ValueError('not torn down')\n"
        "def test_here(resource): pass\n"
        f"@pytest.mark.cuda_isolated(method={method!r})\n"
        "def test_there(): pass\n"
    )
    result = interpreters.run(
        [sys.executable, "-m", "pytest", "-p", "cudafork", "-p", module, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout=TIME_LIMIT,
    )
    assert "ERROR test_it.py::test_there - ValueError: not torn down" in result.stdout
    assert "2 passed, 1 error" in result.stdout


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_is_rerun_in_a_new_process(tmp_path: Path, method: str) -> None:
    module = needs("rerunfailures")
    (tmp_path / "test_it.py").write_text(
        "import os\n"
        "def test_crash():\n"
        "    with open('count', 'a') as file: file.write('x')\n"
        "    if os.path.getsize('count') < 3: os._exit(3)\n"
        "def test_never(): os._exit(4)\n"
        "def test_good(): pass\n"
    )
    seen = Sessions(tmp_path, "-v", "--reruns=2", plugins=[module]).run(method)
    assert any("1 failed, 2 passed, 4 rerun" in line for line in seen.stdout), seen.stdout


@pytest.mark.parametrize("method", METHODS)
def test_tests_that_share_the_process_of_a_rerun_have_reruns_of_their_own(
    tmp_path: Path, method: str
) -> None:
    module = needs("rerunfailures")
    (tmp_path / "test_it.py").write_text(
        "import os\n"
        "def runs(name):\n"
        "    with open(name, 'a') as file: file.write('x')\n"
        "    return os.path.getsize(name)\n"
        "def test_crash():\n"
        "    if runs('crash') < 3: os._exit(3)\n"
        "def test_flaky(): assert runs('flaky') == 3\n"
    )
    shared = "--cuda-fork-isolate-scope=module"
    seen = Sessions(tmp_path, "-v", "--reruns=2", shared, plugins=[module]).run(method)
    assert any("2 passed, 4 rerun" in line for line in seen.stdout), seen.stdout


def test_a_touch_fails_a_test_in_every_rerun(pytester: pytest.Pytester) -> None:
    plugin = needs("rerunfailures")
    pytester.makepyfile(module("def test_a():\n    touch()\n\ndef test_b():\n    pass\n"))
    result = check(pytester, "touch", "-p", plugin, "--reruns=2")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*1 failed, 1 passed, 2 rerun*"])
    assert "what to do:" in result.stdout.str()
