"""``--forked`` and the marker ``forked`` without pytest-forked: what it documents, and no less."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.isolate.session.forked_option import decide
from tests.support import leaps
from tests.support.sessions import assert_no_crash, failure, outcomes, run_session

# pytest-forked may be installed beside us, but autoload is off in these sessions.
needs_xdist = pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"
)

PIDS = """
import os
import pytest

def note(name):
    with open("pids", "a") as file:
        file.write(f"{name} {os.getpid()} {os.getppid()}\\n")

def test_plain():
    note("plain")

@pytest.mark.forked
def test_marked():
    note("marked")

@pytest.mark.forked
class TestMarked:
    def test_in_class(self):
        note("in_class")
"""


def processes(pytester: pytest.Pytester) -> dict[str, int]:
    """Return the process in which each test of ``PIDS`` ran."""
    lines = (pytester.path / "pids").read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: int(line.split()[1]) for line in lines}


METHODS_OF_SESSIONS = st.sampled_from([None, "none", "fork", "auto"])


@given(peer=st.booleans(), flag=st.booleans(), isolate=METHODS_OF_SESSIONS)
def test_the_peer_keeps_its_option_unless_we_are_asked(
    peer: bool, flag: bool, isolate: str | None
) -> None:
    claim = decide(peer_loaded=peer, flag=flag, isolate=isolate)
    assert claim.ours == (isolate != "none" or not peer)
    assert claim.every_test == (flag and (not peer or isolate in ("fork", "auto")))


def test_the_flag_gives_every_test_a_process_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import os\nopen('session', 'w').write(str(os.getpid()))")
    pytester.makepyfile(PIDS)
    result = run_session(pytester, "--forked")
    assert_no_crash(result)
    result.assert_outcomes(passed=3)
    found = processes(pytester)
    assert len(set(found.values())) == 3


def test_without_the_flag_only_marked_tests_leave_the_process(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import os\ndef pytest_collection(): open('session', 'w').write(str(os.getpid()))"
    )
    pytester.makepyfile(PIDS)
    result = run_session(pytester, "--strict-markers")
    assert_no_crash(result)
    result.assert_outcomes(passed=3)
    found = processes(pytester)
    session = int((pytester.path / "session").read_text())
    assert found["plain"] == session
    assert session not in (found["marked"], found["in_class"])
    assert found["marked"] != found["in_class"]


@pytest.mark.parametrize("args", [["--forked"], []])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "CRASHED with signal 15 (SIGTERM)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "CRASHED with signal 11 (SIGSEGV)"),
        ("os._exit(42)", "EXITED with status 42"),
        ("os._exit(0)", "EXITED with status 0"),
    ],
)
def test_a_crash_is_a_failure_in_the_words_of_the_peer_and_the_rest_runs_on(
    pytester: pytest.Pytester, args: list[str], body: str, words: str
) -> None:
    mark = "" if args else "@pytest.mark.forked"
    pytester.makepyfile(
        f"""
import os, signal, pytest

{mark}
def test_crash():
    print("last words")
    {body}

def test_after():
    pass
"""
    )
    result = run_session(pytester, *args, "-v")
    assert_no_crash(result)
    assert outcomes(result) == {"test_crash": "FAILED", "test_after": "PASSED"}
    text = failure(result, "test_crash")
    assert f"running the test {words}" in text
    assert "last words" in text


def test_words_of_the_peer_are_for_its_tests_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import os, pytest

@pytest.mark.cuda_isolated
def test_crash():
    os._exit(42)
"""
    )
    result = run_session(pytester, "-v")
    assert "running the test" not in failure(result, "test_crash")


@pytest.mark.parametrize("strict", [True, False])
def test_an_expected_failure_that_crashes_is_an_expected_failure_with_both_reasons(
    pytester: pytest.Pytester, strict: bool
) -> None:
    pytester.makepyfile(
        f"""
import os, pytest

@pytest.mark.forked
@pytest.mark.xfail(reason="it dies", strict={strict})
def test_dies():
    os.kill(os.getpid(), 15)

@pytest.mark.forked
@pytest.mark.xfail(reason="it dies", strict={strict})
def test_lives():
    pass
"""
    )
    result = run_session(pytester, "-rxX")
    assert_no_crash(result)
    text = result.stdout.str()
    assert "running the test CRASHED with signal 15" in text
    assert "it dies" in text
    counted = {"xfailed": 1, "failed": 1} if strict else {"xfailed": 1, "xpassed": 1}
    result.assert_outcomes(**counted)


def test_output_of_a_crash_is_in_its_failure_even_if_nothing_is_captured(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
import os, sys

def test_crash():
    sys.stdout.write("hello\\n")
    sys.stderr.write("world\\n")
    os.kill(os.getpid(), 15)
"""
    )
    result = run_session(pytester, "--forked", "-s")
    result.stdout.fnmatch_lines(
        ["*CRASHED*", "*stdout*", "hello", "*stderr*", "world", "*1 failed*"]
    )


def test_skips_warnings_and_fixtures_are_those_of_a_test_in_process(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
import warnings, pytest

@pytest.fixture(scope="module")
def shared():
    return []

def test_fills(shared, tmp_path):
    shared.append(1)
    assert shared == [1]

def test_sees_nothing_of_it(shared):
    assert shared == []

def test_skips():
    pytest.skip("not today")

def test_warns():
    warnings.warn("heard", UserWarning)
"""
    )
    result = run_session(pytester, "--forked", "-rs")
    assert_no_crash(result)
    result.assert_outcomes(passed=3, skipped=1, warnings=1)
    assert "not today" in result.stdout.str()
    assert "heard" in result.stdout.str()


@pytest.mark.parametrize("call", ["forked(1)", "forked(method='fork')"])
def test_arguments_of_the_marker_fail_the_test_with_the_way_out(
    pytester: pytest.Pytester, call: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{call}\ndef test_a(): pass\n")
    result = run_session(pytester, "-v")
    assert_no_crash(result)
    result.assert_outcomes(errors=1)
    assert "forked takes no arguments" in failure(result, "test_a")
    assert "cuda_isolated" in failure(result, "test_a")


def test_help_and_markers_tell_of_both(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--help")
    assert any(line.strip().startswith("--forked") for line in result.outlines)
    result = run_session(pytester, "--markers")
    assert sum("@pytest.mark.forked" in line for line in result.outlines) == 1


def test_a_path_may_follow_the_flag(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("suite")
    (folder / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--own', action='store_true')"
    )
    (folder / "test_a.py").write_text("def test_a(): pass")
    for args in (["--forked", "suite", "--own"], ["suite", "--forked", "--own"]):
        result = run_session(pytester, *args)
        assert_no_crash(result)
        result.assert_outcomes(passed=1)


def test_an_option_of_that_name_in_a_conftest_stays_theirs(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "def pytest_addoption(parser): parser.addoption('--forked', action='store', default='no')"
    )
    pytester.makepyfile("def test_a(request): assert request.config.option.forked == 'yes'")
    result = run_session(pytester, "--forked=yes")
    assert_no_crash(result)
    result.assert_outcomes(passed=1)


@needs_xdist
def test_workers_of_xdist_isolate_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import os, pytest

@pytest.mark.parametrize("n", range(6))
def test_many(n):
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

def test_crash():
    os._exit(3)
"""
    )
    result = run_session(pytester, "-p", "xdist.plugin", "-n2", "--forked")
    assert_no_crash(result)
    result.assert_outcomes(passed=6, failed=1)
    assert "EXITED with status 3" in result.stdout.str()
    assert len(set((pytester.path / "pids").read_text().split())) == 6
    assert "worker 'gw" not in result.stdout.str()


def test_a_closer_wish_beats_the_flag(pytester: pytest.Pytester) -> None:
    folder = pytester.path / "leaps"
    pytester.makepyfile(
        leaps.module(folder)
        + f"""
import sys, time, pytest

@pytest.mark.spawn_only
def test_fresh():
    assert "not_in_a_fresh_one" not in sys.modules

@pytest.mark.cuda_isolated(timeout={leaps.LIMIT})
def test_short():
    time_is_up()
    time.sleep(1000)
"""
    )
    pytester.makeconftest(
        leaps.conftest(folder)
        + "import sys\ndef pytest_runtestloop(): sys.modules['not_in_a_fresh_one'] = sys\n"
    )
    result = run_session(pytester, "--forked", "-v")
    assert outcomes(result)["test_short"] == "FAILED"
    assert f"time limit of {leaps.LIMIT} s" in failure(result, "test_short")


def test_under_the_debugger_nothing_is_forked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PIDS)
    result = run_session(pytester, "--forked", "--pdb")
    result.assert_outcomes(passed=3)
    assert len(set(processes(pytester).values())) == 1
