"""Isolated tests within their session: options, stops, workers, directories."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.support.isolation import METHODS, isolate_all
from tests.support.sessions import (
    assert_no_crash,
    run_session,
)


def test_isolation_works_without_pytests_debugging_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.cuda_isolated(method="fork")
        def test_isolated():
            pass
        """)
    result = run_session(pytester, "-p", "no:debugging")
    assert_no_crash(result)
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("without", [("reports",), ("subtests",), ("subtests", "reports")])
@pytest.mark.parametrize("method", METHODS)
def test_reports_travel_without_pytests_plugins_for_that(
    pytester: pytest.Pytester, method: str, without: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        """
        import unittest
        class TestParts(unittest.TestCase):
            def test_parts(self):
                for i in range(3):
                    with self.subTest(i=i): self.assertNotEqual(i, 1)
        def test_ok(): print("words")
        def test_fails(): assert [1] == [2]
        """
    )
    removed = [f"-pno:{name}" for name in without]
    outcomes = run_session(pytester, *removed, "-rA").parseoutcomes()
    result = run_session(pytester, *removed, "-rA", f"--cuda-fork-isolate={method}")
    assert result.parseoutcomes() == outcomes
    result.stdout.fnmatch_lines(["*AssertionError: 1 == 1", "*At index 0 diff: 1 != 2", "words"])


@pytest.mark.parametrize("method", METHODS)
def test_the_options_that_stop_select_and_write_work(
    pytester: pytest.Pytester, method: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        def test_a(record_property): record_property("speed", 3)
        def test_b(): print("why"); assert 0
        def test_c(): pass
        """
    )
    result = run_session(pytester, "-x", "--junitxml=out.xml", "-o", "junit_logging=all")
    result.assert_outcomes(passed=1, failed=1)
    cases = list(ElementTree.parse(pytester.path / "out.xml").iter("testcase"))
    assert [case.get("name") for case in cases] == ["test_a", "test_b"]
    assert [(p.get("name"), p.get("value")) for p in cases[0].iter("property")] == [("speed", "3")]
    assert cases[1].find("failure") is not None
    run_session(pytester, "--lf").assert_outcomes(failed=1)
    run_session(pytester, "--maxfail=2", "-k", "test_a or test_c").assert_outcomes(passed=2)


@pytest.mark.parametrize("method", METHODS)
def test_without_pytests_capture_what_is_written_stands_where_it_was_written(
    pytester: pytest.Pytester, method: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import pytest
        @pytest.fixture(autouse=True)
        def around():
            yield
            print("words after it")
        def test_a(): print("words of a")
        def test_b(): print("words of b")
        """
    )
    result = run_session(pytester, "-v", "-p", "no:capture")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::test_a words of a", "PASSED*words after it"])
    result.stdout.fnmatch_lines(["*::test_b words of b", "PASSED*words after it"])


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="subtests came with pytest 9")
@pytest.mark.parametrize("method", METHODS)
def test_with_x_a_test_ends_at_its_first_failed_subtest(
    pytester: pytest.Pytester, method: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        def test_parts(subtests):
            for i in range(4):
                with subtests.test(i=i): assert i != 1
        def test_after(): pass
        """
    )
    result = run_session(pytester, "-v", "-x")
    result.stdout.fnmatch_lines(["*= 2 failed, 1 subtests passed in *"])
    result = run_session(pytester, "-v", "--maxfail=4")
    result.stdout.fnmatch_lines(["*= 2 failed, 1 passed, 3 subtests passed in *"])


@pytest.mark.parametrize("scope", ["test", "module"])
@pytest.mark.parametrize("method", METHODS)
def test_where_no_temporary_directory_can_be_made_those_fail_that_need_one(
    pytester: pytest.Pytester, method: str, scope: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        def test_a(): pass
        def test_b(tmp_path): pass
        def test_c(): pass
        """
    )
    scope = f"--cuda-fork-isolate-scope={scope}"
    result = run_session(pytester, "--basetemp=/proc/nowhere", scope)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*FileNotFoundError: *'/proc/nowhere'"])


@pytest.mark.parametrize("method", METHODS)
def test_it_works_in_the_workers_of_xdist(pytester: pytest.Pytester, method: str) -> None:
    pytest.importorskip("xdist")
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import os, pytest
        @pytest.mark.parametrize("i", range(4))
        def test_ok(i, worker_id): assert worker_id.startswith("gw")
        def test_dies(): print("last words"); os.kill(os.getpid(), 9)
        """
    )
    result = run_session(pytester, "-p", "xdist.plugin", "-n", "2", "-rA")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines_random(["ChildCrashed: SIGKILL in call*", "last words"])


@pytest.mark.parametrize("method", METHODS)
def test_warnings_that_are_errors_fail_the_test(pytester: pytest.Pytester, method: str) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import warnings, pytest
        def test_warns(): warnings.warn("no")
        @pytest.mark.filterwarnings("ignore:no")
        def test_ignored(): warnings.warn("no")
        """
    )
    result = run_session(pytester, "-W", "error")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*UserWarning: no*"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("statement", "words", "status"),
    [
        ("pytest.exit('enough', returncode=7)", "*Exit: enough*", 7),
        ("raise KeyboardInterrupt('by hand')", "*.py:6: KeyboardInterrupt: by hand", 2),
        ("request.session.shouldstop = 'stop now'", "*stop now*", 2),
    ],
)
def test_a_test_that_stops_the_session_stops_it(
    pytester: pytest.Pytester, method: str, statement: str, words: str, status: int
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        f"""
        import pytest
        @pytest.fixture
        def tidy():
            yield
            open("tidy", "w").close()
        def test_stops(request, tidy): {statement}
        def test_never(): open("ran", "w").close()
        """
    )
    result = run_session(pytester)
    result.stdout.fnmatch_lines([words])
    assert result.ret == status
    assert not (pytester.path / "ran").exists()
    assert (pytester.path / "tidy").exists()


def test_a_test_outside_the_root_directory_is_found(pytester: pytest.Pytester) -> None:
    isolate_all(pytester, "spawn")
    root = pytester.mkdir("root")
    inside = pytester.mkdir("elsewhere").joinpath("test_x.py")
    inside.write_text("class TestX:\n    def test_y(self): assert 0, 'found'\n")
    result = run_session(pytester, f"--rootdir={root}", "-c", os.devnull, "elsewhere")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: found"])


@pytest.mark.parametrize("method", METHODS)
def test_the_child_reads_the_same_ini_file_and_options(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makeini("[pytest]\naddopts = -p no:doctest --own=7\nmarkers = odd\n")
    isolate_all(
        pytester,
        method,
        "\ndef pytest_addoption(parser): parser.addoption('--own', type=int)\n",
    )
    pytester.makepyfile(
        """
        def test_x(pytestconfig):
            assert pytestconfig.getoption("own") == 7
            assert not pytestconfig.pluginmanager.hasplugin("doctest")
            assert pytestconfig.getini("markers")[0] == "odd"
            assert str(pytestconfig.rootpath) == ROOT
        """.replace("ROOT", repr(str(pytester.path)))
    )
    run_session(pytester, "-v", "--strict-markers").assert_outcomes(passed=1)


def test_a_script_that_runs_pytest_does_not_run_twice(pytester: pytest.Pytester) -> None:
    isolate_all(pytester, "spawn")
    pytester.makepyfile(test_x="def test_x(run_spawned): assert run_spawned(int, '3') == 3")
    script = pytester.makepyfile(
        script="print('started'); import pytest; raise SystemExit(pytest.main(['-q', 'test_x.py']))"
    )
    result = pytester.runpython(script)
    assert result.ret == 0
    assert len(re.findall("started", result.stdout.str())) == 1


@pytest.mark.parametrize("output", ["--capture=fd", "-s"])
@pytest.mark.parametrize("method", METHODS)
def test_a_breakpoint_fails_its_test_and_says_how_to_reach_the_debugger(
    pytester: pytest.Pytester, method: str, output: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import pdb, pytest
        def test_a(): breakpoint()
        def test_b(): pdb.set_trace()
        def test_c(): pytest.set_trace()
        def test_d(): pass
        """
    )
    result = run_session(pytester, output)
    result.assert_outcomes(failed=3, passed=1)
    line = "E * RuntimeError: breakpoint() and set_trace() need the terminal*--pdb*"
    result.stdout.fnmatch_lines([line] * 3)
    result.stdout.no_fnmatch_line("*PDB set_trace*")


def test_a_breakpoint_in_a_function_that_runs_in_a_child_says_the_same(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        def stop(): breakpoint()
        def test_a(run_forked): run_forked(stop)
        def test_b(run_forkserver): run_forkserver(stop)
        def test_c(run_spawned): run_spawned(stop)
        """
    )
    result = run_session(pytester)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["E * RuntimeError: breakpoint() and set_trace() need *"] * 3)


@pytest.mark.parametrize("written_by", ["self._tw = TerminalWriter(sys.stdout)", "pass"])
@pytest.mark.parametrize("method", METHODS)
def test_a_terminal_of_another_plugin_needs_nothing_that_pytests_has(
    pytester: pytest.Pytester, method: str, written_by: str
) -> None:
    extra = f"""
import sys
from _pytest._io import TerminalWriter

class Terminal:
    def __init__(self, config):
        {written_by}
        self.verbosity, self.stats = 0, {{}}

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            print(report.nodeid, report.outcome)

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(Terminal(config), "terminalreporter")
"""
    isolate_all(pytester, method, extra)
    pytester.makepyfile("def test_a(): print('words')\ndef test_b(): assert 0")
    result = run_session(pytester, "-s")
    assert result.ret == pytest.ExitCode.TESTS_FAILED, result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(["words", "*::test_a passed", "*::test_b failed"])


@pytest.mark.parametrize("order", [("extra", "no:extra"), ("no:extra", "extra")])
@pytest.mark.parametrize("method", METHODS)
def test_the_last_word_on_a_plugin_counts(
    pytester: pytest.Pytester, method: str, order: tuple[str, str]
) -> None:
    pytester.makeini(f"[pytest]\naddopts = -p {order[0]}\npythonpath = .")
    pytester.makepyfile(
        extra="def pytest_addoption(parser): parser.addoption('--extra')",
        test_it=f"""
            def test_a(pytestconfig):
                loaded = pytestconfig.pluginmanager.has_plugin("extra")
                assert loaded == {order[1] == "extra"}
            """,
    )
    option = f"--cuda-fork-isolate={method}"
    run_session(pytester, option, "-p", order[1]).assert_outcomes(passed=1)


LOGS = """
import logging, pytest

@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "none"] * 2)
def test_logs(method, request): logging.warning(request.node.callspec.id)
"""
ISOLATES = """
import pytest

def pytest_itemcollected(item):
    method = item.callspec.params["method"]
    if method != "none":
        item.add_marker(pytest.mark.cuda_isolated(method=method))
"""


def test_a_log_file_has_what_every_process_has_logged(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ISOLATES)
    pytester.makepyfile(LOGS)
    run_session(pytester, "--log-file=log.txt").assert_outcomes(passed=8)
    lines = (pytester.path / "log.txt").read_text().splitlines()
    logged = [line.rpartition(" ")[2] for line in lines if line.startswith("WARNING")]
    methods = ("fork", "spawn", "forkserver", "none")
    assert logged == [f"{method}{number}" for number in (0, 1) for method in methods]


FAULTS = """
import os
from pytest_cudafork.compat.pytest_internals import descriptor_of_faults

def test_hangs(pytestconfig): os.write(descriptor_of_faults(pytestconfig), b"stacks of a hang\\n")
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_stacks_of_faulthandler_timeout_are_seen(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(FAULTS)
    result = run_session(pytester, f"--cuda-fork-isolate={method}")
    result.assert_outcomes(passed=1)
    assert result.stderr.lines.count("stacks of a hang") == 1


@pytest.mark.parametrize("method", METHODS)
def test_of_two_reasons_to_stop_the_later_one_is_told(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        pytestmark = pytest.mark.cuda_isolated(method={method!r}, scope="module")
        @pytest.fixture
        def stops(request):
            yield
            request.session.shouldfail = "the teardown says so"
        def test_before(): pass
        def test_fails(stops): assert 0
        def test_never(): open("ran", "w").close()
        """
    )
    result = run_session(pytester, "-x")
    result.stdout.fnmatch_lines(["!* the teardown says so !*"])
    assert result.ret == 1
    assert not (pytester.path / "ran").exists()
