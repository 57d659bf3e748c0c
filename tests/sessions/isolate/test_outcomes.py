"""Tests of whole tests in processes of their own: outcomes are those of a session without them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support import leaps
from tests.support.isolation import METHODS, isolate_all
from tests.support.leaps import LIMIT
from tests.support.sessions import run_session

PYTEST_9 = pytest.version_tuple >= (9, 0)

ZOO = """
import os, sys, unittest, warnings, pytest

@pytest.fixture
def bad_setup(): raise RuntimeError("in set-up")
@pytest.fixture
def bad_teardown():
    yield
    raise RuntimeError("in tear-down")

def test_pass(record_property):
    record_property("speed", 3); record_property("kind", (1.5, None))
    print("words on stdout"); print("words on stderr", file=sys.stderr)
def test_fail(): print("shown"); assert [1, 2] == [1, 3]
def test_skip(): pytest.skip("no reason")
@pytest.mark.skipif(True, reason="marked")
def test_skipif(): assert 0
@pytest.mark.xfail(reason="known")
def test_xfail(): assert 0
@pytest.mark.xfail(reason="wrong kind", raises=ValueError)
def test_xfail_other(): raise KeyError("other")
@pytest.mark.xfail(run=False, reason="never")
def test_xfail_norun(): os._exit(1)
@pytest.mark.xfail(strict=True, reason="strict")
def test_xpass_strict(): pass
@pytest.mark.xfail(strict=False)
def test_xpass(): pass
def test_xfail_inside(): pytest.xfail("from inside")
def test_setup_error(bad_setup): pass
def test_teardown_error(bad_teardown): pass
def test_both(bad_teardown): assert 0
def test_warns(): warnings.warn("look here", FutureWarning)
def test_sys_exit(): sys.exit(3)
class Selfish(Exception):
    def __reduce__(self): raise TypeError("mine")
def test_unpicklable(): raise Selfish(lambda: 0)
@pytest.mark.parametrize("odd", ["a::b", "[x]", "/", "a b", "x\\ny", "\\xe9", "\\ud800", ""])
def test_odd(odd): pass
class TestClass:
    def test_method(self): assert self
class TestUnit(unittest.TestCase):
    def setUp(self): self.x = 1
    def test_unit(self): self.assertEqual(self.x, 1)
    def test_unit_fails(self): self.assertEqual(self.x, 2)
    @unittest.skip("unit")
    def test_unit_skips(self): pass
def test_capsys(capsys):
    print("x")
    assert capsys.readouterr().out == "x\\n"
def test_capfd(capfd):
    os.write(1, b"y")
    assert capfd.readouterr().out == "y"
def documented():
    '''
    >>> 1 + 1
    2
    '''
def documented_badly():
    '''
    >>> 1 + 1
    3
    '''
def test_two_mebibytes(): print("x" * 2_000_000); assert 0
"""

SUBTESTS = """
def test_sub(subtests):
    for i in range(3):
        with subtests.test(i=i):
            assert i != 1
"""

RECORDER = """
import json
SEEN = []
def pytest_runtest_logreport(report):
    SEEN.append([report.nodeid, report.when, report.outcome, getattr(report, "wasxfail", None),
        [[n, len(t)] for n, t in report.sections], [str(p) for p in report.user_properties],
        str(getattr(report, "context", "")), report.duration >= 0, list(report.location),
        report.longreprtext if report.skipped and not hasattr(report, "wasxfail")
        else bool(report.longreprtext)])
def pytest_warning_recorded(warning_message, when, nodeid):
    SEEN.append(["warning", warning_message.category.__name__, str(warning_message.message),
        warning_message.filename, warning_message.lineno, when, nodeid])
def pytest_sessionfinish(session):
    if not session.config.pluginmanager.hasplugin("cudafork-only-one"):
        with open("seen.json", "w") as file: json.dump(SEEN, file)
"""


def _seen(pytester: pytest.Pytester, method: str) -> tuple[list[Any], dict[str, int]]:
    import json

    pytester.makepyfile(test_zoo=ZOO + (SUBTESTS if PYTEST_9 else ""))
    isolate_all(pytester, method, RECORDER)
    result = run_session(
        pytester, "-p", "no:cacheprovider", "--doctest-modules", "-o", "xfail_strict=false"
    )
    seen = json.loads((pytester.path / "seen.json").read_text())
    return seen, result.parseoutcomes()


@pytest.mark.parametrize("method", METHODS)
def test_every_outcome_is_the_one_of_the_test_in_process(
    pytester: pytest.Pytester, method: str
) -> None:
    expected, expected_counts = _seen(pytester, "")
    seen, counts = _seen(pytester, method)
    assert set(map(str, seen)) ^ set(map(str, expected)) == set()
    assert len(seen) == len(expected)
    assert counts == expected_counts
    assert len(expected) > 80


@pytest.mark.parametrize("method", METHODS)
def test_a_death_is_a_failure_of_its_phase_and_the_session_goes_on(
    pytester: pytest.Pytester, method: str
) -> None:
    folder = pytester.path / "leaps"
    isolate_all(pytester, method, leaps.conftest(folder))
    pytester.makepyfile(leaping=leaps.module(folder))
    pytester.makepyfile(
        test_d="""
        import ctypes, os, signal, subprocess, sys, time, pytest
        from leaping import time_is_up
        def kill(): os.kill(os.getpid(), signal.SIGKILL)
        @pytest.fixture
        def dies_early(): kill()
        @pytest.fixture
        def dies_late():
            yield
            print("in tear-down"); kill()
        def test_setup(dies_early): pass
        def test_call(): print("before the crash"); sys.stdout.flush(); ctypes.string_at(0)
        def test_teardown(dies_late): pass
        def test_exits(): os._exit(0)
        def test_after_the_end():
            import atexit
            atexit.register(kill)
        @pytest.mark.xfail(reason="crashes, we know")
        def test_expected(): kill()
        @pytest.mark.xfail(reason="other", raises=KeyError)
        def test_not_expected(): kill()
        @pytest.mark.cuda_isolated(method="METHOD", timeout=LIMIT)
        def test_hangs(): print("before the hang"); time_is_up(); time.sleep(1000)
        def test_last(): subprocess.Popen(["sleep", "60"])
        """.replace("METHOD", method).replace("LIMIT", str(LIMIT))
    )
    result = run_session(pytester, "-rA", "--durations=0")
    result.assert_outcomes(passed=3, failed=4, errors=3, xfailed=1)
    result.stdout.fnmatch_lines_random(
        [
            "ChildCrashed: SIGKILL in setup: *",
            "ChildCrashed: SIGSEGV in call: *",
            "before the crash",
            "ChildCrashed: SIGKILL in teardown: *",
            "in tear-down",
            "ChildCrashed: exit status 0 in call: * before the test was over*",
            "ChildCrashed: SIGKILL after the test was over: *",
            f"ChildTimeout: time limit of {LIMIT} s exceeded in call: *",
            "before the hang",
            "  File *, line * in test_hangs",
            "XFAIL *::test_expected - crashes, we know",
            "FAILED *::test_call - ChildCrashed: SIGSEGV in call*",
            "PASSED *::test_last",
        ]
    )


@pytest.mark.parametrize("capture", ["fd", "sys", "no", "tee-sys"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_output_before_a_crash_is_shown_once(
    pytester: pytest.Pytester, method: str, capture: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import os
        def test_first(): print("first words")
        def test_dies(): print("last words"); os.kill(os.getpid(), 9)
        def test_next_inproc(): print("other words"); assert 0
        """
    )
    result = run_session(pytester, f"--capture={capture}", "-rN")
    result.assert_outcomes(passed=1, failed=2)
    assert result.stdout.str().count("last words") == (2 if "tee" in capture else 1) - (
        "tee" in capture
    )


FIXTURES = """
import os, pytest
def note(what):
    with open("log", "a") as file: file.write(f"{what} {os.getpid()}\\n")
@pytest.fixture(scope="session")
def wide():
    note("wide up"); yield os.getpid(); note("wide down")
@pytest.fixture(scope="module", params=[1, 2])
def param(request):
    note(f"param{request.param} up"); yield request.param; note(f"param{request.param} down")
"""


def test_a_fork_uses_the_parents_fixtures_and_never_tears_them_down(
    pytester: pytest.Pytester,
) -> None:
    isolate_all(pytester, "fork", FIXTURES)
    pytester.makepyfile(
        test_a="""
        import os, pytest
        def test_inproc(wide): assert wide == os.getpid()
        @pytest.fixture(scope="module")
        def made_in_child(wide):
            import conftest
            conftest.note("mod up"); yield; conftest.note("mod down")
        def test_isolated(wide, made_in_child): assert wide == os.getppid()
        """,
        test_b="""
        def test_inproc(wide, param): pass
        def test_isolated(wide, param): pass
        """,
        test_c="def test_last_inproc(wide): pass",
    )
    result = run_session(pytester, "-v")
    result.assert_outcomes(passed=7)
    lines = [line.rsplit(" ", 1) for line in (pytester.path / "log").read_text().splitlines()]
    parent = lines[0][1]
    own = [what for what, pid in lines if pid == parent]
    assert own[0] == "wide up"
    assert own[-1] == "wide down"
    assert sorted(own[1:-1]) == ["param1 down", "param1 up", "param2 down", "param2 up"]
    assert [what for what, pid in lines if pid != parent] == ["mod up", "mod down"]


def test_a_failing_tear_down_of_the_parent_after_an_isolated_test_is_reported(
    pytester: pytest.Pytester,
) -> None:
    isolate_all(pytester, "fork")
    pytester.makepyfile(
        test_a="""
        import pytest
        @pytest.fixture(scope="module", autouse=True)
        def mod():
            yield
            raise RuntimeError("only once")
        def test_inproc(): pass
        def test_isolated(): pass
        """,
        test_b="def test_inproc(): pass",
    )
    result = run_session(pytester, "-rA")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["ERROR test_a.py::test_isolated - RuntimeError: only once"])


@pytest.mark.parametrize("method", METHODS)
def test_tmp_path_lies_in_the_sessions_directory_and_is_unique(
    pytester: pytest.Pytester, method: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import pytest
        BASE = {!r}
        @pytest.mark.parametrize("i", range(3))
        def test_long_long_long_long_long_long(i, tmp_path):
            with open(BASE, "a") as file: file.write(f"{{tmp_path}}\\n")
        def test_inproc(tmp_path):
            with open(BASE, "a") as file: file.write(f"{{tmp_path}}\\n")
        """.format(str(pytester.path / "paths"))
    )
    run_session(pytester, "-p", "no:cacheprovider").assert_outcomes(passed=4)
    paths = (pytester.path / "paths").read_text().splitlines()
    assert len(set(paths)) == 4
    assert len({os.path.dirname(path) for path in paths}) == 1
    assert all(os.path.isdir(path) for path in paths)


@pytest.mark.parametrize("method", METHODS)
def test_outcomes_of_a_plugins_own_are_outcomes(pytester: pytest.Pytester, method: str) -> None:
    """As pytest-retry reports a call: with an outcome of its own, and then the call alone again."""
    isolate_all(pytester, method, OUTCOMES_OF_ITS_OWN)
    pytester.makepyfile(
        """
        def test_retried(): assert 0
        def test_known(): assert 0
        def test_blocked(nothing): assert 0
        def test_passes(): pass
        """
    )
    result = run_session(pytester, "-v")
    result.stdout.fnmatch_lines(["*= 2 passed, 1 retried, 1 known, 1 blocked in *"])
    assert result.ret == pytest.ExitCode.OK


OUTCOMES_OF_ITS_OWN = """

import pytest
OWN = {"test_known": ("call", "known"), "test_blocked": ("setup", "blocked")}

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if OWN.get(item.name, [""])[0] == report.when:
        report.outcome = OWN[item.name][1]
    if (item.name, report.when) == ("test_retried", "call"):
        report.outcome = "retried"
        item.ihook.pytest_runtest_logreport(report=report)
        report.outcome, report.longrepr = "passed", None
    return report

def pytest_report_teststatus(report):
    if report.outcome in ("known", "blocked", "retried"):
        return report.outcome, "k", report.outcome.upper()
"""
