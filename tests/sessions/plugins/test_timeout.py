"""Isolated tests with pytest-timeout."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.isolation_plugins import FORKS, needs, same

SLOW = """
    import sys
    import time
    import pytest

    @pytest.fixture
    def slow_setup():
        time.sleep(30)

    @pytest.fixture
    def slow_teardown():
        yield
        time.sleep(30)

    def test_body():
        print("before")
        time.sleep(30)

    def test_setup(slow_setup):
        pass

    def test_teardown(slow_teardown):
        pass

    @pytest.mark.timeout(0)
    def test_no_limit():
        time.sleep(0.6)

    @pytest.mark.timeout(0.3, func_only=True)
    def test_func_only():
        time.sleep(30)

    def test_good():
        pass
"""


def test_a_time_limit_of_pytest_timeout_is_reported_the_same(tmp_path: Path) -> None:
    stacks = (r"^\+\+\+ Timeout \+\+\+$", r"^~~~ Stack of ")
    same(tmp_path, METHODS, ["timeout"], {"test_it.py": SLOW}, "--timeout=3", known=stacks)


@pytest.mark.parametrize("source", ["options", "ini"])
@pytest.mark.parametrize("method", METHODS)
def test_a_time_limit_kept_by_a_thread_fails_its_test_and_no_other(
    tmp_path: Path, method: str, source: str
) -> None:
    module = needs("timeout")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SLOW), encoding="utf-8")
    limit = ["--timeout=3", "--timeout-method=thread"]
    if source == "ini":
        limit = ["-o", "timeout=3", "-o", "timeout_method=thread"]
    options = ("-v", *limit, "-k", "body or good or limit")
    seen = Sessions(tmp_path, *options, plugins=[module]).run(method)
    assert any("1 failed, 2 passed" in line for line in seen.stdout), seen.stdout
    assert any("Timeout (>3.0s) from pytest-timeout" in line for line in seen.stdout), seen.stdout
    assert any("time.sleep(30)" in line for line in seen.stdout), seen.stdout


def test_the_time_limit_of_the_session_of_pytest_timeout_ends_it(tmp_path: Path) -> None:
    source = "import time\ndef test_a(): time.sleep(1)\ndef test_b(): pass\ndef test_c(): pass\n"
    same(tmp_path, FORKS, ["timeout"], {"test_it.py": source}, "--session-timeout=0.5")
