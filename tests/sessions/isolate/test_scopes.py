"""Tests of the scope of isolation: the tests of one class, or of one file, share a child."""

from __future__ import annotations

import pytest

from tests.support import leaps
from tests.support.isolation import METHODS
from tests.support.leaps import LIMIT, LONGER
from tests.support.sessions import run_session

GROUP = """
import os, pytest
pytestmark = pytest.mark.cuda_isolated(method={method!r}, scope="module", timeout=300)

def note(text):
    with open("notes", "a") as file: file.write(f"{{text}} {{os.getpid()}}\\n")

@pytest.fixture(scope="module")
def engine():
    note("up")
    yield "engine"
    note("down")
"""


def make_leaping(pytester: pytest.Pytester) -> None:
    """Write what lets the tests say that their time is up."""
    folder = pytester.path / "leaps"
    pytester.makeconftest(leaps.conftest(folder))
    pytester.makepyfile(leaping=leaps.module(folder))


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
    result = run_session(pytester, "-v")
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
    result = run_session(pytester, "-rA")
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
    run_session(pytester).assert_outcomes(passed=8)
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
    result = run_session(pytester, "-x")
    result.assert_outcomes(failed=1)
    assert [word for word, _ in notes(pytester)] == ["up", "down"]


STOPPED = """
import pytest
pytestmark = pytest.mark.cuda_isolated(method={method!r}, scope="module", timeout=300)

@pytest.fixture(scope="module")
def engine():
    yield
    print("last words of the engine")
    raise RuntimeError("it does not shut down")

def test_a(engine): pass
def test_b(engine): assert {holds}
def test_c(engine): pass
"""
STOPS = """
def pytest_runtest_logreport(report):
    if report.when == "call" and "test_b" in report.nodeid: SESSION.shouldstop = "out of time"

def pytest_sessionstart(session):
    global SESSION
    SESSION = session
"""


@pytest.mark.parametrize("option", ["-x", "--stepwise", "a conftest"])
@pytest.mark.parametrize("method", METHODS)
def test_the_test_that_stops_a_session_has_the_teardown_of_its_group(
    pytester: pytest.Pytester, method: str, option: str
) -> None:
    holds = option == "a conftest"
    pytester.makeconftest(STOPS if holds else "")
    pytester.makepyfile(STOPPED.format(method=method, holds=holds))
    result = run_session(pytester, *([] if holds else [option]))
    passed, failed = 1 + holds, 1 - holds
    if pytest.version_tuple < (8,):  # it tears down after the last test, and ends with a traceback
        result.assert_outcomes(passed=passed, failed=failed, warnings=1)
        result.stdout.fnmatch_lines(
            ["*PytestWarning: teardown of a group of *", "*RuntimeError: it does not shut down"]
        )
        assert result.stdout.str().count("last words of the engine") == 1
        return
    result.assert_outcomes(passed=passed, failed=failed, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_b*",
            "*RuntimeError: it does not shut down",
            "*Captured stdout teardown*",
            "last words of the engine",
        ]
    )
    assert result.outlines.count("last words of the engine") == 1


def test_a_time_limit_holds_for_each_test_of_a_group(pytester: pytest.Pytester) -> None:
    make_leaping(pytester)
    pytester.makepyfile(
        f"""
        import time, pytest
        from leaping import time_is_up, time_leaps
        pytestmark = pytest.mark.cuda_isolated(method="fork", scope="module", timeout={LIMIT})
        @pytest.mark.parametrize("i", range(3))
        def test_short(i): time_leaps({2 * LIMIT // 5})
        def test_long(): time_is_up(); time.sleep(1000)
        def test_after(): pass
        """
    )
    result = run_session(pytester, "-rA")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines_random([f"*time limit of {LIMIT} s exceeded in call*"])


CLASSES = """
class TestA:
    def test_1(self, engine): note("a1")
    def test_2(self, engine): note("a2")
class TestB:
    def test_1(self, engine): note("b1")
    class TestInner:
        def test_2(self): note("b2")
        def test_3(self): note("b3")
def test_plain_1(): note("p1")
def test_plain_2(): note("p2")
import unittest
class TestOld(unittest.TestCase):
    def test_1(self): note("o1")
    def test_2(self): note("o2")
"""
TOGETHER = {
    "class": [{"a1", "a2"}, {"b1"}, {"b2", "b3"}, {"p1"}, {"p2"}, {"o1", "o2"}],
    "module": [{"a1", "a2", "b1", "b2", "b3", "p1", "p2", "o1", "o2"}],
}


def groups(pytester: pytest.Pytester) -> list[set[str]]:
    """The words that were written by one process each, in the order of the first one's."""
    found: dict[str, set[str]] = {}
    for word, pid in notes(pytester):
        if word not in ("up", "down"):
            found.setdefault(pid, set()).add(word)
    return list(found.values())


@pytest.mark.parametrize("scope", TOGETHER)
def test_a_session_has_a_scope_for_all_tests_and_as_many_processes(
    pytester: pytest.Pytester, scope: str
) -> None:
    source = (
        GROUP.format(method="fork")
        .replace(' scope="module",', "")
        .replace('fixture(scope="module")', f'fixture(scope="{scope}")')
    )
    pytester.makepyfile(source + CLASSES)
    result = run_session(pytester, f"--cuda-fork-isolate-scope={scope}")
    result.assert_outcomes(passed=9)
    assert groups(pytester) == TOGETHER[scope]
    words = [word for word, _ in notes(pytester)]
    assert words.count("up") == words.count("down") == (2 if scope == "class" else 1)


def test_a_marker_says_class_and_beats_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(GROUP.format(method="fork").replace("module", "class") + CLASSES)
    args = ["--cuda-fork-isolate=fork", "--cuda-fork-isolate-scope=module"]
    run_session(pytester, *args).assert_outcomes(passed=9)
    assert groups(pytester) == TOGETHER["class"]


def test_a_group_is_renewed_after_a_crash_and_a_hang_and_time_limits_may_differ(
    pytester: pytest.Pytester,
) -> None:
    make_leaping(pytester)
    pytester.makepyfile(
        GROUP.format(method="fork").replace(' scope="module",', "")
        + """
import time
from leaping import time_is_up
def test_a(engine): note("a")
def test_crash(engine): os._exit(3)
def test_b(engine): note("b")
@pytest.mark.cuda_isolated(timeout=LIMIT, method="fork")
def test_hang(engine): time_is_up(); time.sleep(1000)
def test_c(engine): note("c")
@pytest.mark.cuda_isolated(timeout=LONGER, method="fork")
def test_d(engine): note("d")
def test_wrong_marker(engine): note("never")
test_wrong_marker.pytestmark = [pytest.mark.cuda_isolated(timeout="soon")]
def test_e(engine): note("e")
""".replace("LIMIT", str(LIMIT)).replace("LONGER", str(LONGER))
    )
    result = run_session(pytester, "--cuda-fork-isolate-scope=module", "-rA")
    result.assert_outcomes(passed=5, failed=2, errors=1)
    assert groups(pytester) == [{"a"}, {"b"}, {"c", "d"}, {"e"}]
    result.stdout.fnmatch_lines(["*exit status 3 in call*"])
    result.stdout.fnmatch_lines([f"*time limit of {LIMIT} s exceeded in call*"])


def test_an_interpreter_that_was_started_ahead_has_the_whole_group(
    pytester: pytest.Pytester,
) -> None:
    source = GROUP.format(method="spawn")
    body = "def test_1(): note('{0}1')\ndef test_2(): note('{0}2')\n"
    pytester.makepyfile(test_x=source + body.format("x"), test_y=source + body.format("y"))
    run_session(pytester).assert_outcomes(passed=4)
    assert groups(pytester) == [{"x1", "x2"}, {"y1", "y2"}]


def test_groups_work_in_the_workers_of_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        GROUP.format(method="forkserver")
        + """
@pytest.mark.parametrize("i", range(6))
def test_x(engine, i): note("x")
"""
    )
    run_session(pytester, "-p", "xdist.plugin", "-n2", "--dist=loadfile").assert_outcomes(passed=6)
    seen = notes(pytester)
    assert len([1 for word, _ in seen if word == "x"]) == 6
    assert len([1 for word, _ in seen if word == "up"]) == len(
        [1 for word, _ in seen if word == "down"]
    )


@pytest.mark.parametrize("breaks", [False, True])
def test_what_the_pytest_process_tears_down_after_an_isolated_test_is_captured(
    pytester: pytest.Pytester, breaks: bool
) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        @pytest.fixture(scope="module")
        def engine():
            yield
            print("last words of the engine")
            assert not {breaks}
        def test_here(engine): pass
        @pytest.mark.cuda_isolated(method="fork")
        def test_there(engine): pass
        """
    )
    result = run_session(pytester)
    result.assert_outcomes(passed=2, errors=int(breaks))
    if breaks:
        expected = ["*teardown of test_there*", "*stdout teardown*", "last words of the engine"]
        result.stdout.fnmatch_lines(expected)
    assert result.stdout.str().count("last words") == (2 if breaks else 0)  # once in the source


@pytest.mark.parametrize("method", METHODS)
def test_a_failure_that_tests_share_a_process_with_shows_no_frame_of_the_plugin(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makeconftest("""
        import pytest
        @pytest.fixture
        def bad():
            yield
            raise ValueError("bad teardown")
        @pytest.fixture
        def worse():
            raise ValueError("bad setup")
    """)
    pytester.makepyfile(
        GROUP.format(method=method)
        + """
@pytest.mark.start_methods("fork")
def test_a(bad): pass
def test_b(bad): pass
@pytest.mark.start_methods("fork")
def test_c(worse): pass
def test_d(worse): pass
"""
    )
    result = run_session(pytester, "--cuda-fork-health=fail")
    result.assert_outcomes(passed=2, errors=4)
    result.stdout.no_fnmatch_line("*pytest_cudafork*")
