"""Isolated tests whose report cannot be made, and what runs at the end of their process."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support import leaps
from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions
from tests.support.sessions import assert_no_crash, outcomes, run_session

EXIT = """
_supervision.EXIT_SECONDS = 60.0  # far less than a leap
"""

SOURCE = """
import atexit
import logging
import os
import time

import pytest

from leaping import time_is_up

class Hangs(Exception):
    def __str__(self):
        hang()

def hang():
    time_is_up()
    time.sleep(1000)

class Dies(Exception):
    def __str__(self):
        os.abort()

@pytest.fixture
def chatty():
    print("of set-up")

@pytest.mark.cuda_isolated(timeout=LIMIT)
def test_report_hangs(chatty):
    print("of the call")
    logging.warning("logged")
    raise Hangs

@pytest.mark.cuda_isolated
def test_report_dies(chatty):
    print("of the call")
    raise Dies

@pytest.fixture
def report_hangs():
    print("of a set-up that fails")
    raise Hangs

@pytest.mark.cuda_isolated(timeout=LIMIT)
def test_report_of_setup_hangs(report_hangs):
    pass

@pytest.mark.cuda_isolated(timeout=LIMIT)
def test_hangs_at_exit():
    atexit.register(hang)

@pytest.mark.cuda_isolated(timeout=LONGER)
def test_takes_its_time_at_exit():
    atexit.register(time.sleep, 0.3)
    atexit.register(time_is_up)
"""


@pytest.mark.parametrize("method", METHODS)
def test_output_is_shown_and_time_counts_to_the_very_end(tmp_path: Path, method: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(leaps.conftest(tmp_path / "leaps") + EXIT)
    (tmp_path / "leaping.py").write_text(leaps.module(tmp_path / "leaps"))
    source = SOURCE.replace("LIMIT", str(leaps.LIMIT)).replace("LONGER", str(leaps.LONGER))
    (tmp_path / "test_it.py").write_text(source)
    seen = Sessions(tmp_path, "-rfE").run(method)
    text = "\n".join(seen.stdout)
    assert "2 failed, 2 passed, 2 errors" in text, text
    call = "--- Captured stdout setup ---\nof set-up\n--- Captured stdout call ---\nof the call\n"
    assert text.count(call) == 2, text
    assert "--- Captured log call ---\nWARNING" in text, text
    assert "--- Captured stdout setup ---\nof a set-up that fails\n" in text, text
    assert (
        f"ERROR test_it.py::test_hangs_at_exit - ChildTimeout: time limit of {leaps.LIMIT} s "
        "exceeded after the test was over" in text
    ), text


def test_a_pool_that_nobody_has_shut_down_ends_with_its_process(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        f"""
        import concurrent.futures
        import multiprocessing
        import pytest

        KEPT = []

        def leave_one(method):
            context = multiprocessing.get_context(method)
            KEPT.append(concurrent.futures.ProcessPoolExecutor(1, context))
            assert KEPT[-1].submit(abs, -1).result(200) == 1

        methods = [pytest.param(one, marks=pytest.mark.cuda_isolated(method=one))
                   for one in {list(METHODS)!r}]

        @pytest.mark.parametrize("method", methods)
        def test_one(method): leave_one("fork")

        def test_call(run_forked): run_forked(leave_one, "spawn")
        """
    )
    result = run_session(pytester, "-v", "--cuda-fork-isolate-timeout=100")
    assert set(outcomes(result).values()) == {"PASSED"}
    assert len(outcomes(result)) == len(METHODS) + 1


@pytest.mark.parametrize("method", METHODS)
def test_a_fixture_here_that_fails_behind_an_isolated_test_is_in_its_one_teardown(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(
        f"""
import unittest
import pytest

@pytest.fixture(scope="module")
def resource():
    yield
    raise ValueError("not torn down")

def test_here(resource): pass

@pytest.mark.cuda_isolated(method={method!r})
class TestThere(unittest.TestCase):
    def test_subtests(self):
        for number in range(2):
            with self.subTest(number=number):
                assert not number

@pytest.mark.cuda_isolated(method={method!r})
def test_there(): pass
"""
    )
    result = run_session(pytester, "--junitxml=out.xml", "--cuda-fork-json=out.json")
    assert_no_crash(result)
    assert "ValueError: not torn down" in result.stdout.str()
    cases = list(ElementTree.parse(pytester.path / "out.xml").iter("testcase"))
    assert [each.get("name") for each in cases].count("test_there") == 1
    tests = json.loads((pytester.path / "out.json").read_text())["tests"]
    phases = [each["phase"] for each in tests[-1]["phases"]]
    assert phases == ["setup", "call", "teardown"]
    assert (tests[-1]["outcome"], tests[-1]["isolation"]["method"]) == ("error", method)


LEFT = """
import atexit

import pytest

class Holder:
    def __init__(self, held=None):
        self.held, self.me = held, self  # no reference count ends it

def zero():
    return 1 / 0

@pytest.fixture
def engine():
    yield Holder(open(__file__))

def test_a_file(): Holder(open(__file__))

def test_a_coroutine():
    async def step(): pass
    Holder(step())

def test_a_fixture(engine): pass

def test_nothing(): pass

def test_an_exit_function(): atexit.register(zero)
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_python_says_of_what_a_test_has_left_is_told(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(LEFT)
    option = f"--cuda-fork-isolate={method}"
    result = run_session(pytester, option, "-W", "always")
    result.assert_outcomes(passed=5, warnings=3)
    told = result.stdout.str().partition("warnings summary")[2]
    for name in ("test_a_file", "test_a_coroutine", "test_a_fixture"):
        assert f"::{name}\n" in told, told
    assert "in zero" in result.stderr.str() + result.stdout.str()
    if pytest.version_tuple >= (8, 4):  # before, pytest itself is silent of it
        result = run_session(pytester, option, "-W", "error", "--tb=short")
        result.assert_outcomes(passed=5, errors=3)
        result.stdout.fnmatch_lines(["ERROR *::test_a_file - *", "ERROR *::test_a_fixture - *"])
