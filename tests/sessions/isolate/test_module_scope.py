"""Tests of ``cuda_isolated(scope="module")``: the tests of one file share a child."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS

GROUP = """
import os, pytest
pytestmark = pytest.mark.cuda_isolated(method={method!r}, scope="module", timeout=30)

def note(text):
    with open("notes", "a") as file: file.write(f"{{text}} {{os.getpid()}}\\n")

@pytest.fixture(scope="module")
def engine():
    note("up")
    yield "engine"
    note("down")
"""


def notes(pytester: pytest.Pytester) -> list[list[str]]:
    """What the tests have written: a word and a process id a line."""
    return [line.split() for line in (pytester.path / "notes").read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_a_module_fixture_is_set_up_once_for_the_whole_file(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(
        GROUP.format(method=method)
        + """
def test_a(engine): note("a")
def test_b(engine): note("b"); assert engine == "other"
@pytest.mark.skip
def test_skipped(engine): pass
class TestMore:
    def test_c(self, engine, tmp_path): note("c")
"""
    )
    result = pytester.runpytest_subprocess("-v")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    seen = notes(pytester)
    assert [word for word, _ in seen] == ["up", "a", "b", "c", "down"]
    assert len({pid for _, pid in seen}) == 1
    result.stdout.fnmatch_lines([f"*test_b FAILED ({method})*", "*assert 'engine' == 'other'*"])


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_fails_its_test_and_the_rest_goes_on_in_a_new_child(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(
        GROUP.format(method=method)
        + """
def test_a(engine): note("a")
def test_b(engine): print("last words"); os.abort()
def test_c(engine): note("c")
def test_d(engine): note("d")
"""
    )
    result = pytester.runpytest_subprocess("-rA")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*SIGABRT in call*", "*last words*"])
    first, second = {pid for word, pid in notes(pytester) if word == "up"}
    by_word = {word: pid for word, pid in notes(pytester) if word in "acd"}
    assert by_word["c"] == by_word["d"] != by_word["a"]
    assert {by_word["a"], by_word["c"]} == {first, second}


def test_groups_do_not_reach_into_other_files_or_markers(pytester: pytest.Pytester) -> None:
    body = GROUP.format(method="fork") + (
        "def test_1(engine): note('1')\ndef test_2(engine): note('2')\n"
        "@pytest.mark.cuda_isolated(method='fork')\ndef test_alone(engine): note('alone')\n"
        "def test_3(engine): note('3')\n"
    )
    pytester.makepyfile(test_x=body, test_y=body)
    pytester.runpytest_subprocess().assert_outcomes(passed=8)
    seen = [(word, pid) for word, pid in notes(pytester) if word not in ("up", "down")]
    pids = [pid for _, pid in seen]
    assert [word for word, _ in seen] == ["1", "2", "alone", "3"] * 2
    assert pids[0] == pids[1]
    assert pids[4] == pids[5]
    assert len(set(pids)) == 6


@pytest.mark.parametrize("method", METHODS)
def test_a_session_that_stops_early_tears_the_group_down(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(
        GROUP.format(method=method)
        + """
def test_a(engine): assert 0
def test_b(engine): note("b")
"""
    )
    result = pytester.runpytest_subprocess("-x")
    result.assert_outcomes(failed=1)
    assert [word for word, _ in notes(pytester)] == ["up", "down"]


def test_a_teardown_that_fails_after_an_early_stop_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.cuda_isolated(method="fork", scope="module")
        @pytest.fixture(scope="module")
        def engine():
            yield
            raise RuntimeError("it does not shut down")
        def test_a(engine): assert 0
        def test_b(engine): pass
        """
    )
    result = pytester.runpytest_subprocess("-x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(["*it does not shut down*"])


def test_a_time_limit_holds_for_each_test_of_a_group(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import time, pytest
        pytestmark = pytest.mark.cuda_isolated(method="fork", scope="module", timeout=2)
        @pytest.mark.parametrize("i", range(3))
        def test_short(i): time.sleep(0.9)
        def test_long(): time.sleep(60)
        def test_after(): pass
        """
    )
    result = pytester.runpytest_subprocess("-rA")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines_random(["*time limit of 2 s exceeded in call*"])


def test_groups_work_in_the_workers_of_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        GROUP.format(method="forkserver")
        + """
@pytest.mark.parametrize("i", range(6))
def test_x(engine, i): note("x")
"""
    )
    pytester.runpytest_subprocess("-n2", "--dist=loadfile").assert_outcomes(passed=6)
    seen = notes(pytester)
    assert len([1 for word, _ in seen if word == "x"]) == 6
    assert len([1 for word, _ in seen if word == "up"]) == len(
        [1 for word, _ in seen if word == "down"]
    )
