"""The isolation benchmark judges as its targets say, and tells where it cannot run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.repo.sources import PROJECT

FOLDER = PROJECT / "benchmarks"


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    """The module with the targets, which is no part of a package."""
    path = FOLDER / "isolation_targets.py"
    spec = importlib.util.spec_from_file_location("isolation_targets", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_target_is_met_up_to_its_limit_and_no_further(targets: ModuleType) -> None:
    for target in targets.TARGETS.values():
        assert target.judge(target.limit)["met"]
        assert target.judge(target.limit + 0.01)["met"] == target.at_least
        assert target.judge(target.limit - 0.01)["met"] != target.at_least


def test_a_ratio_compares_figures_of_the_same_round(targets: ModuleType) -> None:
    # a slow round slows both; the medians of each would compare 2 with 10
    assert targets.paired([1, 2, 20], [10, 20, 2]) == 0.1
    with pytest.raises(ValueError, match="zip"):
        targets.paired([1], [1, 2])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--only", "fork,nothing"], "'nothing' is not a part"),
        (["--only", "fork"], "make .venv-bench/installed"),
    ],
)
def test_what_it_cannot_do_is_a_usage_error_with_the_way_out(args: list[str], words: str) -> None:
    # pytest-forked is hidden: with it and an old pytest the second case would run for minutes
    code = (
        "import sys, runpy, importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'pytest_forked' else find(name, *rest); "
        f"sys.path.insert(0, {str(FOLDER)!r}); sys.argv[1:] = {args!r}; "
        f"runpy.run_path({str(FOLDER / 'bench_isolation.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "server"])
def test_the_floor_runs_each_test_in_a_process_of_its_own(tmp_path: Path, how: str) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('number', range(3))\n"
        "def test_it(number):\n"
        "    open(f'{os.getpid()}.pid', 'w').close()\n"
        "    assert number != 1\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cudafork"),
            *("-p", "bare_fork", f"--bare-fork={how}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    assert "1 failed, 2 passed" in done.stdout
    assert "number != 1" in done.stdout or "assert 1 != 1" in done.stdout
    assert len(list(tmp_path.glob("*.pid"))) == 3
