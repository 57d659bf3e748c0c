"""Isolated tests with pytest-rerunfailures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.isolation_plugins import FORKS, needs, same

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


@pytest.mark.parametrize("method", METHODS)
def test_reruns_of_rerunfailures_happen_and_are_counted(tmp_path: Path, method: str) -> None:
    seen = same(tmp_path, method, ["rerunfailures"], {"test_it.py": FLAKY}, "--reruns=2", "-rR")
    assert any("4 passed" in line and "6 rerun" in line for line in seen[0].stdout), seen[0].stdout


@pytest.mark.parametrize("method", FORKS)
def test_reruns_stop_at_the_limit_of_the_suite(tmp_path: Path, method: str) -> None:
    same(
        tmp_path,
        method,
        ["rerunfailures"],
        {"test_it.py": FLAKY},
        "--reruns=2 --max-suite-reruns=3",
    )


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
