"""Isolated tests: what is around a test, in one process or many, beyond what is reported."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import needs_torch
from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.isolation_plugins import FORKS, write


def _written(path: Path) -> list[Any]:
    """Return what the tests have written into a file, one JSON value a line."""
    return [json.loads(line) for line in (path / "written").read_text().splitlines()]


WRITE = """
import json
def note(value):
    with open(WRITTEN, "a") as file:
        file.write(json.dumps(value) + "\\n")
"""


def _session(path: Path, method: str, files: dict[str, str], *options: str, **kwargs: Any) -> None:
    (path / "written").unlink(missing_ok=True)
    tool = f"WRITTEN = {str(path / 'written')!r}\n{WRITE}"
    write(path, {"tool.py": tool, "pytest.ini": "[pytest]\n", **files})
    seen = Sessions(path, **kwargs).run(method, *options)
    assert seen.status[0] == "0", "\n".join(seen.stdout)


PRINT_RANDOM = """
    import random
    import pytest
    from tool import note

    @pytest.mark.parametrize("i", range(3))
    def test_random(i):
        note(random.random())
"""


@pytest.mark.parametrize("method", METHODS)
def test_random_numbers_differ_between_tests_that_nobody_seeded(
    tmp_path: Path, method: str
) -> None:
    _session(tmp_path, method, {"test_it.py": PRINT_RANDOM})
    assert len(set(_written(tmp_path))) == 3


@pytest.mark.parametrize("where", ["conftest.py", "test_it.py"])
@pytest.mark.parametrize("method", METHODS)
def test_a_seed_of_the_users_holds_in_every_process(
    tmp_path: Path, method: str, where: str
) -> None:
    seed = "\n    import random\n    random.seed(5)\n"
    files = {"test_it.py": PRINT_RANDOM, "conftest.py": ""}
    files[where] = seed + files[where]
    _session(tmp_path, method, files, "-k", "0")
    (alone,) = _written(tmp_path)
    _session(tmp_path, method, files)
    assert _written(tmp_path) == [alone] * 3


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")
@pytest.mark.parametrize(("seed", "different"), [("", 3), ("numpy.random.seed(5)", 1)])
@pytest.mark.parametrize("method", FORKS)
def test_the_same_holds_for_numpy(tmp_path: Path, method: str, seed: str, different: int) -> None:
    source = f"""
        import numpy
        import pytest
        from tool import note
        {seed}

        @pytest.mark.parametrize("i", range(3))
        def test_random(i):
            note(float(numpy.random.random()))
    """
    _session(tmp_path, method, {"test_it.py": source})
    assert len(set(_written(tmp_path))) == different


@needs_torch
@pytest.mark.parametrize("method", FORKS)
@pytest.mark.parametrize("seed", ["", "torch.manual_seed(7)"])
def test_every_test_begins_with_the_seed_that_torch_had(
    tmp_path: Path, method: str, seed: str
) -> None:
    source = f"""
        import pytest
        import torch
        from tool import note
        {seed}

        @pytest.mark.parametrize("i", range(2))
        def test_random(i):
            note([torch.initial_seed(), float(torch.rand(1))])
    """
    _session(tmp_path, method, {"test_it.py": source})
    first, second = _written(tmp_path)
    assert first == second
    assert not seed or first[0] == 7


@pytest.mark.parametrize("method", METHODS)
def test_parameters_from_a_set_run_once_each_whatever_their_order_is(
    tmp_path: Path, method: str
) -> None:
    source = """
        import pytest
        from tool import note

        @pytest.mark.parametrize("word", {"one", "two", "three", "four", "five"})
        def test_word(word):
            note(word)

        @pytest.mark.parametrize("pair", {("a", 1), ("b", 2), ("c", 3)})
        def test_pair(pair):
            note(pair)
    """
    _session(tmp_path, method, {"test_it.py": source}, env={"PYTHONHASHSEED": "random"})
    written = [value for value in _written(tmp_path) if isinstance(value, str)]
    assert sorted(written) == ["five", "four", "one", "three", "two"]
    assert len(_written(tmp_path)) == 8


@pytest.mark.parametrize("method", METHODS)
def test_a_session_has_one_temporary_directory(tmp_path: Path, method: str) -> None:
    source = """
        import pytest
        from tool import note

        @pytest.fixture(scope="session")
        def wide(tmp_path_factory):
            return tmp_path_factory.mktemp("wide")

        @pytest.mark.parametrize("i", range(3))
        def test_it(i, tmp_path, wide):
            note(str(tmp_path))
            note(str(wide))
    """
    _session(tmp_path, method, {"test_it.py": source})
    paths = [Path(text) for text in _written(tmp_path)]
    assert len(set(paths)) == 6
    assert len({path.parent for path in paths}) == 1


@pytest.mark.parametrize("method", METHODS)
def test_what_the_session_changes_is_seen_by_the_next_test(tmp_path: Path, method: str) -> None:
    (tmp_path / "below").mkdir()
    conftest = """
        import os
        import pytest

        def pytest_runtest_logstart(nodeid):
            if "second" in nodeid:
                os.environ["MORE"] = "1"
                os.environ.pop("LESS")
                os.umask(0o027)
                os.chdir("below")
    """
    source = """
        import os
        from tool import note

        def _look():
            mask = os.umask(0)
            os.umask(mask)
            where = os.path.basename(os.getcwd())
            note([os.environ.get("MORE"), os.environ.get("LESS"), mask, where])

        def test_first():
            _look()
            os.environ["LEAK"] = "1"
            os.chdir("/")

        def test_second():
            _look()
            assert "LEAK" not in os.environ
    """
    files = {"conftest.py": conftest, "test_it.py": source}
    _session(tmp_path, method, files, env={"LESS": "1"})
    first, second = _written(tmp_path)
    assert first[:2] == [None, "1"]
    assert second == ["1", None, 0o027, "below"]


@pytest.mark.parametrize("method", METHODS)
def test_hooks_that_hear_of_reports_hear_each_once(tmp_path: Path, method: str) -> None:
    conftest = """
        import os
        from tool import note

        def pytest_runtest_logstart(nodeid, location):
            note(["start", nodeid])

        def pytest_runtest_logreport(report):
            note([report.when, report.outcome])

        def pytest_runtest_logfinish(nodeid, location):
            note(["finish", nodeid])

        def pytest_warning_recorded(warning_message, when, nodeid):
            note(["warning", str(warning_message.message), when, nodeid])
    """
    source = "import warnings\ndef test_it(): warnings.warn('look')\n"
    _session(tmp_path, method, {"conftest.py": conftest, "test_it.py": source})
    seen = _written(tmp_path)
    _session(tmp_path, "", {"conftest.py": conftest, "test_it.py": source})
    assert sorted(seen) == sorted(_written(tmp_path))
    assert len(seen) == 6


@pytest.mark.parametrize("method", METHODS)
def test_conftests_above_the_root_directory_stay_out(tmp_path: Path, method: str) -> None:
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not mine')\n")
    root = tmp_path / "root"
    write(root, {"test_it.py": "def test_it(): pass\n"})
    seen = Sessions(root, "--rootdir=.").run(method)
    assert seen.status[0] == "0", "\n".join(seen.stdout)


@pytest.mark.parametrize("method", METHODS)
def test_ten_megabytes_of_output_arrive(tmp_path: Path, method: str) -> None:
    source = """
        import sys

        def test_much():
            for number in range(100_000):
                print(f"{number:099}")
            print("the end", file=sys.stderr)
            assert 0
    """
    write(tmp_path, {"test_it.py": source})
    seen = Sessions(tmp_path).run(method)
    assert seen.status[0] == "1"
    assert sum(line.isdigit() and len(line) == 99 for line in seen.stdout) == 100_000
    assert "the end" in seen.stdout
