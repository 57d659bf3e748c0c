"""Tests of groups of isolated tests whose process goes on by itself, ahead of what is shown.

The tests of these sessions stop the pytest process, so that what runs meanwhile was not asked for
one by one, and let it go on again.
"""

from __future__ import annotations

import re
import signal

import pytest

from tests.support.isolation import METHODS
from tests.support.sessions import run_session

SECONDS = 60
"""After so long the pytest process goes on whatever became of the tests."""
CONFTEST = """
import os
if "PYTEST_PROCESS" not in os.environ:
    os.environ["PYTEST_PROCESS"] = str(os.getpid())
"""
HEAD = f"""
import os, signal, subprocess, time
import pytest

PARENT = int(os.environ["PYTEST_PROCESS"])

def note(text):
    with open("notes", "a") as file: file.write(f"{{text}}\\n")

def stop():
    subprocess.Popen(["sh", "-c", f"sleep {SECONDS}; kill -CONT {{PARENT}}"])
    os.kill(PARENT, signal.SIGSTOP)
    while not is_stopped(): time.sleep(0.01)

def is_stopped():
    with open(f"/proc/{{PARENT}}/stat") as file: fields = file.read().rpartition(")")[2]
    return fields.split()[0] == "T"

def go_on():
    note("ahead" if is_stopped() else "asked")
    os.kill(PARENT, signal.SIGCONT)

@pytest.fixture(scope="module", autouse=True)
def engine():
    note("up")
    yield
    note("down")

def test_1(): note(1); stop()
def test_2(): note(2)
"""
OPTIONS = ("-v", "--cuda-fork-isolate-scope=module")


def session(
    pytester: pytest.Pytester, body: str, *args: str, method: str = "fork", conftest: str = ""
) -> pytest.RunResult:
    """Run a session of these tests."""
    pytester.makeconftest(CONFTEST + conftest)
    pytester.makepyfile(test_it=HEAD + body)
    return run_session(pytester, *OPTIONS, f"--cuda-fork-isolate={method}", *args)


def notes(pytester: pytest.Pytester) -> str:
    """What the tests have noted, in its order."""
    return " ".join((pytester.path / "notes").read_text().split())


def outcomes(result: pytest.RunResult) -> list[str]:
    """The outcomes with ``-v``, in the order in which they are shown."""
    found = (re.match(r"test_it\.py::(\w+) (\w+)", line) for line in result.stdout.lines)
    return [f"{one[1]} {one[2]}" for one in found if one is not None]


@pytest.mark.parametrize("method", METHODS)
def test_a_group_does_not_wait_for_its_tests_to_be_shown(
    pytester: pytest.Pytester, method: str
) -> None:
    body = "def test_3(): note(3)\ndef test_4(): note(4); go_on()\ndef test_5(): note(5)\n"
    result = session(pytester, body, method=method)
    assert notes(pytester) == "up 1 2 3 4 ahead 5 down"
    assert outcomes(result) == [f"test_{number} PASSED" for number in range(1, 6)]


def test_more_tests_than_one_order_names_run_in_one_process(pytester: pytest.Pytester) -> None:
    body = "@pytest.mark.parametrize('i', range(200))\ndef test_many(i): note(i + 3)\n"
    body = body.replace("note(i + 3)", "go_on() if i == 0 else note(i + 3)")
    result = session(pytester, body)
    result.assert_outcomes(passed=202)
    assert notes(pytester).split() == ["up", "1", "2", "ahead", *map(str, range(4, 203)), "down"]


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_ahead_is_that_of_its_test_and_nothing_runs_twice(
    pytester: pytest.Pytester, method: str
) -> None:
    body = (
        "def test_3(): note(3); print('last words'); go_on(); os.abort()\n"
        "def test_4(): note(4)\ndef test_5(): note(5)\n"
    )
    result = session(pytester, body, "-rA", method=method)
    assert notes(pytester) == "up 1 2 3 ahead up 4 5 down"
    assert outcomes(result) == [
        *("test_1 PASSED", "test_2 PASSED", "test_3 FAILED", "test_4 PASSED", "test_5 PASSED")
    ]
    result.stdout.fnmatch_lines(["*SIGABRT in call*", "*last words*"])


def test_a_crash_in_a_set_up_and_one_in_a_teardown_are_told_as_such(
    pytester: pytest.Pytester,
) -> None:
    body = """
@pytest.fixture
def bad(): os.abort()
@pytest.fixture
def bad_end():
    yield
    os.abort()
def test_3(): note(3); go_on()
def test_4(bad): note(4)
def test_5(): note(5)
def test_6(bad_end): note(6)
def test_7(): note(7)
"""
    result = session(pytester, body)
    assert notes(pytester) == "up 1 2 3 ahead up 5 6 up 7 down"
    result.assert_outcomes(passed=6, errors=2)
    result.stdout.fnmatch_lines(["*SIGABRT in setup*", "*SIGABRT in teardown*"])


@pytest.mark.parametrize("method", METHODS)
def test_what_was_read_for_a_report_that_never_came_is_kept_ahead_too(
    pytester: pytest.Pytester, method: str
) -> None:
    conftest = """
import pytest, time
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if item.name == "test_3" and call.when == "call":
        item.module.go_on()
        time.sleep(1)  # until what came before is shown
        os.abort()
    return (yield)
"""
    result = session(
        pytester, "def test_3(): print('said'); note(3)\n", method=method, conftest=conftest
    )
    assert notes(pytester) == "up 1 2 3 ahead"
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*SIGABRT in call*", "*Captured stdout call*", "said"])


@pytest.mark.parametrize("method", METHODS)
def test_after_a_failure_no_test_runs_that_is_not_wanted(
    pytester: pytest.Pytester, method: str
) -> None:
    body = (
        "def later(): subprocess.Popen(['sh', '-c', f'sleep 2; kill -CONT {PARENT}'])\n"
        "def test_3(): note(3); later(); assert 0\n"
        "def test_4(): note(4); assert 0\ndef test_5(): note(5)\n"
    )
    result = session(pytester, body, "-x", method=method)
    assert notes(pytester) == "up 1 2 3 down"
    assert outcomes(result) == ["test_1 PASSED", "test_2 PASSED", "test_3 FAILED"]
    (pytester.path / "notes").unlink()
    result = session(pytester, body, "--maxfail=2", method=method)
    assert notes(pytester) == "up 1 2 3 4 down"
    (pytester.path / "notes").unlink()
    session(pytester, body, method=method).assert_outcomes(passed=3, failed=2)
    assert notes(pytester) == "up 1 2 3 4 5 down"


@pytest.mark.parametrize("method", METHODS)
def test_a_time_limit_holds_for_a_test_that_was_begun_ahead(
    pytester: pytest.Pytester, method: str
) -> None:
    body = (
        "@pytest.mark.cuda_isolated(timeout=2)\n"
        "def test_3(): note(3); print('before'); go_on(); time.sleep(1000)\n"
        "def test_4(): note(4)\n"
    )
    result = session(pytester, body, method=method)
    assert notes(pytester) == "up 1 2 3 ahead up 4 down"
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*time limit of 2 s exceeded in call*", "*before*"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
@pytest.mark.parametrize("method", METHODS)
def test_what_has_run_ahead_is_reported_before_an_interrupt_ends_the_session(
    pytester: pytest.Pytester, method: str, number: signal.Signals
) -> None:
    body = f"""
def test_3(): note(3)
def test_4(): note(4)
def test_5(): os.kill(PARENT, {int(number)}); note(5); go_on(); time.sleep(1000)
def test_6(): note(6)
"""
    result = session(pytester, body, method=method)
    assert notes(pytester) == "up 1 2 3 4 5 ahead"
    assert outcomes(result) == [f"test_{one} PASSED" for one in range(1, 5)]
    assert "test_5" in result.stdout.str()
    assert result.ret == (2 if number is signal.SIGINT else 128 + number)


def test_a_hook_of_the_user_is_asked_between_two_tests(pytester: pytest.Pytester) -> None:
    conftest = """
def pytest_runtest_logreport(report):
    if report.when == "teardown" and "test_4" in report.nodeid:
        SESSION[0].shouldstop = "enough"

SESSION = []
def pytest_sessionstart(session):
    SESSION.append(session)
"""
    pytester.makeconftest(conftest)
    pytester.makepyfile("".join(f"def test_{one}(): open('ran{one}', 'w')\n" for one in range(9)))
    result = run_session(pytester, *OPTIONS, "--cuda-fork-isolate=fork")
    result.assert_outcomes(passed=5)
    assert not (pytester.path / "ran5").exists()


@pytest.mark.parametrize(
    "options",
    [(), ("-v",), ("--setup-show",), ("-o", "log_cli=true"), ("-s",), ("--durations=0", "-vv")],
    ids=" ".join,
)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_shown_is_as_in_one_process(
    pytester: pytest.Pytester, method: str, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        """
        import logging, warnings, pytest
        def test_1(): print("said")
        def test_2(request): request.node.add_marker("added")
        @pytest.mark.parametrize("i", range(3))
        def test_3(i): logging.warning("logged %s", i)
        def test_4(record_property): record_property("a", 1); warnings.warn("careful")
        def test_5(): assert 0
        @pytest.mark.skip
        def test_6(): pass
        @pytest.mark.xfail
        def test_7(): assert 0
        class TestIt:
            def test_8(self, tmp_path, subtests):
                with subtests.test("part"): assert not list(tmp_path.iterdir())
            def test_9(self): pass
        def test_10(): logging.error("the end")
        """
    )
    shown = [
        _shown(run_session(pytester, "-rA", "-p", "no:randomly", *one, *options))
        for one in [(), ("--cuda-fork-isolate-scope=module", f"--cuda-fork-isolate={method}")]
    ]
    assert shown[1] == shown[0]


def _shown(result: pytest.RunResult) -> list[str]:
    """What a session has shown, without what is about isolation or time."""
    # a longer time of the whole session makes the marks of its line fewer
    whole = re.compile(r"^=+ (.* in )\d+\.\d+s( \([\d:]+\))? =+$")
    lines = [whole.sub(r"\1TIME", line) for line in result.stdout.lines]
    lines = [re.sub(r"\d+\.\d+s", "TIME", line) for line in lines]
    lines = [re.sub(r" \((fork|forkserver|spawn)\)", "", line) for line in lines]
    lines = [re.sub(r" *\[ *\d+%\]$|\.py:\d+ *$", "", line).rstrip() for line in lines]
    first = next(number for number, line in enumerate(lines) if "collected 1" in line)
    return sorted(lines[first + 1 :]) if "slowest" in result.stdout.str() else lines[first + 1 :]
