"""Isolated tests that depend on each other, by pytest-dependency and by pytest-depends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS, isolate_all
from tests.support.isolation_plugins import needs, same
from tests.support.sessions import run_session

DEPENDENCY = {
    "test_a.py": """
    import pytest
    from pytest_dependency import depends

    @pytest.mark.dependency
    def test_good():
        pass

    @pytest.mark.dependency(name="bad")
    def test_bad():
        assert False

    @pytest.mark.dependency
    @pytest.mark.xfail
    def test_expected():
        assert False

    @pytest.mark.dependency(depends=["test_good"])
    def test_runs():
        pass

    @pytest.mark.dependency(depends=["test_runs"])
    def test_runs_too():
        pass

    @pytest.mark.dependency(depends=["test_runs", "bad"])
    def test_skipped():
        pass

    @pytest.mark.dependency(depends=["test_expected"])
    def test_skipped_too():
        pass

    @pytest.mark.dependency(depends=["test_skipped"])
    def test_skipped_likewise():
        pass

    @pytest.mark.dependency(depends=["test_nowhere"])
    def test_of_an_unknown_one():
        pass

    @pytest.fixture
    def needed(request):
        depends(request, ["test_good", request.param])

    @pytest.mark.parametrize("needed", ["test_runs", "bad"], indirect=True)
    def test_asks_itself(needed):
        pass

    class TestOne:
        @pytest.fixture
        def broken(self):
            yield
            raise RuntimeError("teardown")

        @pytest.mark.dependency
        @pytest.mark.parametrize("n", [0, 1])
        def test_number(self, n):
            assert n

        @pytest.mark.dependency
        def test_left(self, broken):
            pass

        @pytest.mark.dependency(depends=["test_number[1]"], scope="class")
        def test_of_one(self):
            pass

        @pytest.mark.dependency(depends=["test_number[0]"], scope="class")
        def test_of_zero(self):
            pass

        @pytest.mark.dependency(depends=["TestOne::test_left"])
        def test_of_a_teardown(self):
            pass
    """,
    "test_b.py": """
    import pytest

    @pytest.mark.dependency(depends=["test_a.py::test_runs"], scope="session")
    def test_of_another_file():
        pass

    @pytest.mark.dependency(depends=["bad"], scope="session")
    def test_of_a_bad_one_there():
        pass
    """,
}

DEPENDS = {
    "test_a.py": """
    import pytest

    @pytest.mark.depends(on=["test_good"])
    def test_runs():
        pass

    def test_good():
        pass

    @pytest.mark.depends(name="named")
    def test_bad():
        assert False

    @pytest.mark.depends(on=["test_runs", "named"])
    def test_skipped():
        pass

    @pytest.mark.depends(on=["test_nowhere"])
    def test_of_an_unknown_one():
        pass

    @pytest.mark.depends(on=["test_b.py"])
    def test_of_a_file():
        pass
    """,
    "test_b.py": """
    def test_one():
        pass
    """,
}

SOME_HERE = """
    import os
    import pytest

    @pytest.mark.dependency
    def test_inproc_good():
        pass

    @pytest.mark.dependency(depends=["test_inproc_good"])
    def test_runs():
        pass

    @pytest.mark.dependency(depends=["test_runs"])
    def test_inproc_runs():
        pass

    @pytest.mark.dependency
    def test_dies():
        os._exit(7)

    @pytest.mark.dependency(depends=["test_runs"])
    def test_runs_too():
        pass

    @pytest.mark.dependency(depends=["test_dies"])
    def test_skipped():
        pass

    @pytest.mark.dependency(depends=["test_dies"])
    def test_inproc_skipped():
        pass
"""


@pytest.mark.parametrize("scope", ["test", "module"])
@pytest.mark.parametrize("options", ["", "--ignore-unknown-dependency", "-o automark_dependency=1"])
def test_what_depends_on_a_test_runs_or_is_skipped(
    tmp_path: Path, scope: str, options: str
) -> None:
    run = f"--cuda-fork-isolate-scope={scope} {options}"
    same(tmp_path, METHODS, ["dependency"], DEPENDENCY, run)


@pytest.mark.parametrize("scope", ["test", "module"])
@pytest.mark.parametrize("method", METHODS)
def test_tests_here_and_elsewhere_know_of_each_other_and_of_one_that_died(
    pytester: pytest.Pytester, method: str, scope: str
) -> None:
    plugin = needs("dependency")
    isolate_all(pytester, method)
    pytester.makepyfile(SOME_HERE)
    result = run_session(pytester, "-p", plugin, f"--cuda-fork-isolate-scope={scope}", "-v")
    result.assert_outcomes(passed=4, failed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [f"*test_dies FAILED ({method})*", f"*test_runs_too PASSED ({method})*"]
    )


@pytest.mark.parametrize("scope", ["test", "module"])
def test_so_it_is_with_pytest_depends(tmp_path: Path, scope: str) -> None:
    same(tmp_path, METHODS, ["depends"], DEPENDS, f"--cuda-fork-isolate-scope={scope}")
