"""Isolated steps: the recipe of pytest's documentation, by which later ones expect to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS, isolate_all
from tests.support.isolation_plugins import same
from tests.support.sessions import run_session

# As the documentation of pytest has it, and as that of earlier releases had it.
TODAY = """
import pytest

_test_failed_incremental = {}

def pytest_runtest_makereport(item, call):
    if "incremental" in item.keywords:
        if call.excinfo is not None:
            cls_name = str(item.cls)
            parametrize_index = (
                tuple(item.callspec.indices.values()) if hasattr(item, "callspec") else ()
            )
            test_name = item.originalname or item.name
            _test_failed_incremental.setdefault(cls_name, {}).setdefault(
                parametrize_index, test_name
            )

def pytest_runtest_setup(item):
    if "incremental" in item.keywords:
        cls_name = str(item.cls)
        if cls_name in _test_failed_incremental:
            parametrize_index = (
                tuple(item.callspec.indices.values()) if hasattr(item, "callspec") else ()
            )
            test_name = _test_failed_incremental[cls_name].get(parametrize_index, None)
            if test_name is not None:
                pytest.xfail(f"previous test failed ({test_name})")
"""
BEFORE = """
import pytest

def pytest_runtest_makereport(item, call):
    if "incremental" in item.keywords:
        if call.excinfo is not None:
            parent = item.parent
            parent._previousfailed = item

def pytest_runtest_setup(item):
    if "incremental" in item.keywords:
        previousfailed = getattr(item.parent, "_previousfailed", None)
        if previousfailed is not None:
            pytest.xfail("previous test failed ({})".format(previousfailed.name))
"""
RECIPES = pytest.mark.parametrize(
    "recipe", [pytest.param(TODAY, id="today"), pytest.param(BEFORE, id="before")]
)
MARKER = """
def pytest_configure(config):
    config.addinivalue_line("markers", "incremental: steps")
"""
STEPS = """
    import pytest

    @pytest.mark.incremental
    class TestUser:
        def test_login(self):
            pass

        def test_modification(self):
            assert 0

        def test_deletion(self):
            pass

        def test_after(self):
            pass

    @pytest.mark.incremental
    class TestGood:
        def test_one(self):
            pass

        @pytest.mark.xfail(strict=False)
        def test_better_than_expected(self):
            pass

        def test_two(self):
            pass

    @pytest.mark.incremental
    class TestNotSetUp:
        @pytest.fixture
        def broken(self):
            raise RuntimeError("no set-up")

        def test_one(self, broken):
            pass

        def test_two(self):
            pass

    @pytest.mark.incremental
    @pytest.mark.parametrize("n", [0, 1])
    class TestNumbers:
        def test_one(self, n):
            assert n

        def test_two(self, n):
            pass

    class TestOthers:
        def test_one(self):
            assert 0

        def test_two(self):
            pass

    def test_not_implemented():
        pass
    """
CRASH = """
    import os
    import pytest

    @pytest.mark.incremental
    class TestUser:
        def test_inproc_one(self):
            pass

        def test_dies(self):
            os._exit(7)

        def test_two(self):
            pass

        def test_inproc_two(self):
            pass

    @pytest.mark.incremental
    class TestMore:
        def test_inproc_fails(self):
            assert 0

        def test_three(self):
            pass
"""


@RECIPES
@pytest.mark.parametrize("scope", ["test", "class"])
def test_steps_after_one_that_failed_expect_to_fail(
    tmp_path: Path, recipe: str, scope: str
) -> None:
    files = {"conftest.py": recipe + MARKER, "test_it.py": STEPS}
    found = same(tmp_path, METHODS, [], files, f"--cuda-fork-isolate-scope={scope}")
    for (seen,) in found.values():
        lines = [line for line in seen.stdout if "TestUser" in line and "previous test" in line]
        assert lines, seen.stdout


@RECIPES
@pytest.mark.parametrize("method", METHODS)
def test_steps_here_and_elsewhere_know_of_each_other_and_of_one_that_died(
    pytester: pytest.Pytester, method: str, recipe: str
) -> None:
    isolate_all(pytester, method, recipe + MARKER)
    pytester.makepyfile(CRASH)
    result = run_session(pytester, "-v")
    result.assert_outcomes(passed=1, failed=2, xfailed=3)
