"""vLLM's tests with its helpers and with the lines for them: what is replaced and compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools import vllm_helpers
from tools.vllm_helpers import Compared, HelpersError

UTILS = '''\
import functools
import pytest

KEPT = 1

def wait_for_gpu_memory_to_clear(*, devices, threshold_bytes=None):
    """Waits."""

@functools.cache
def fork_new_process_for_each_test(test):
    @functools.wraps(test)
    def wrapper(*args, **kwargs):
        try:
            test(*args, **kwargs)
        except pytest.skip.Exception:
            pass  # as the status of a forked child
    return wrapper

def spawn_new_process_for_each_test(test):
    return test

def create_new_process_for_each_test(method=None):
    return fork_new_process_for_each_test

def multi_gpu_test(*, num_gpus):
    return pytest.mark.skip
LAST = 2
'''
TESTS = """
import os
import pytest
from tests.utils import KEPT, LAST, create_new_process_for_each_test

@create_new_process_for_each_test()
def test_passes(): assert (KEPT, LAST) == (1, 2)

@create_new_process_for_each_test()
def test_skips(): pytest.skip("no model")

@pytest.mark.parametrize("n", {"a", "b", "c", "d"})
def test_fails(n): assert n == os.getpid()
"""
REPORT_LOG = """
import json

def pytest_addoption(parser):
    parser.addoption("--report-log")

def pytest_configure(config):
    class Writer:
        def pytest_runtest_logreport(self, report):
            data = config.hook.pytest_report_to_serializable(config=config, report=report)
            with open(config.getoption("--report-log"), "a") as file:
                file.write(json.dumps(data) + "\\n")
    config.pluginmanager.register(Writer())
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The source of a release that has vLLM's helpers and three tests."""
    tests = tmp_path / "vllm" / "tests"
    tests.mkdir(parents=True)
    for name, text in (("utils", UTILS), ("test_it", TESTS), ("conftest", REPORT_LOG)):
        (tests / f"{name}.py").write_text(text)
    (tests / "__init__.py").touch()
    (tmp_path / "vllm" / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return tmp_path / "vllm"


def test_the_lines_stand_where_the_first_helper_was() -> None:
    text, gone = vllm_helpers.replaced(UTILS, "LINES = 3\n")
    assert text == "import functools\nimport pytest\n\nKEPT = 1\n\nLINES = 3\n\n\n\n\nLAST = 2\n"
    assert gone == 17
    with pytest.raises(HelpersError, match=r"has no multi_gpu_test$"):
        vllm_helpers.replaced(UTILS.replace("def multi_gpu_test", "def many"), "")


@pytest.mark.slow
def test_each_test_is_compared_and_what_is_kept_is_not_run_again(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    call = [str(source), "--python", sys.executable, "--folder", str(folder)]
    assert vllm_helpers.main([*call, "tests/test_it.py"]) == 1
    said = capsys.readouterr().out
    assert "17 lines of helpers are replaced" in said
    (row,) = json.loads(said.splitlines()[-1])["files"]
    outcomes = {
        f"setup passed, call {each}, teardown passed": each for each in ("passed", "failed")
    }
    assert {outcomes[key]: count for key, count in row["same"].items()} == {
        "passed": 1,
        "failed": 4,
    }
    assert (row["words"], row["missing"], row["ended"]) == (4, 0, []), (
        "the numbers of other processes"
    )
    (differs,) = row["differ"]
    assert differs.startswith("tests/test_it.py::test_skips: setup passed, call passed, teardown")
    assert "call skipped" in differs
    (source / "tests" / "test_it.py").unlink()
    assert vllm_helpers.main([*call, "--table"]) == 1
    assert differs in capsys.readouterr().out
    with pytest.raises(SystemExit):
        vllm_helpers.main([*call, "tests/test_it.py"])
    assert "has no tests/test_it.py" in capsys.readouterr().err


def test_the_table_says_which_side_was_ended_and_what_one_side_alone_has() -> None:
    rows = [
        Compared(
            "tests/a.py", {"theirs": 3.2, "ours": 600.0}, ["ours"], {"call passed": 2}, [], 0, 3
        ),
        Compared(
            "tests/b.py", {"theirs": 1.0, "ours": 2.0}, [], {}, ["t: passed -> skipped ()"], 0, 0
        ),
    ]
    text, data = vllm_helpers.report_of(rows)
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    assert ["", "`tests/a.py`", "2 call passed", "0", "0", "3", "3 and 600 (ended)", ""] in lines
    assert ["", "`tests/b.py`", "none", "1", "0", "0", "1 and 2", ""] in lines
    assert text.endswith("- `t: passed -> skipped ()`")
    assert len(data["files"]) == 2
