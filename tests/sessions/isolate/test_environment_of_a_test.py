"""Isolated tests: parameters, directories, environment, hooks and output of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.isolation_notes import run_noting
from tests.support.isolation_plugins import write


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
    noted = run_noting(tmp_path, method, {"test_it.py": source})
    written = [value for value in noted if isinstance(value, str)]
    assert sorted(written) == ["five", "four", "one", "three", "two"]
    assert len(noted) == 8


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
    noted = run_noting(tmp_path, method, {"test_it.py": source})
    paths = [Path(text) for text in noted]
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
    noted = run_noting(tmp_path, method, files, env={"LESS": "1"})
    first, second = noted
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
    seen = run_noting(tmp_path, method, {"conftest.py": conftest, "test_it.py": source})
    expected = run_noting(tmp_path, "", {"conftest.py": conftest, "test_it.py": source})
    assert sorted(seen) == sorted(expected)
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
            for number in range(10_000):
                print(f"{number:0999}")
            print("the end", file=sys.stderr)
            assert 0
    """
    write(tmp_path, {"test_it.py": source})
    seen = Sessions(tmp_path).run(method)
    assert seen.status[0] == "1"
    assert sum(line.isdigit() and len(line) == 999 for line in seen.stdout) == 10_000
    assert "the end" in seen.stdout
