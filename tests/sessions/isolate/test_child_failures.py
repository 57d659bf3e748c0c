"""A child that does not start, cannot find its test, or is ended: every test is reported."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS, isolate_all, with_cores
from tests.support.sessions import assert_no_crash, run_session

pytestmark = pytest.mark.fresh_children("how Python starts is replaced")


def test_a_child_that_never_starts_is_an_error_with_how_it_ended(
    pytester: pytest.Pytester,
) -> None:
    isolate_all(pytester, "spawn", with_cores(1))
    pytester.makepyfile(
        """
        import sys
        def test_inproc(): sys.executable = "/bin/false"
        def test_isolated(): pass
        def test_also_inproc(): sys.executable = "/no/such/file"
        def test_isolated_too(): pass
        def test_last_inproc(): pass
        """
    )
    result = run_session(pytester, "-rA")
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines_random(["Child*: *exited with status 1*", "*/no/such/file*"])


def test_a_test_that_the_child_cannot_find_says_what_it_found(pytester: pytest.Pytester) -> None:
    isolate_all(pytester, "spawn")
    pytester.makepyfile(
        test_x="""
        import os, sys, pytest
        in_child = "pytest_cudafork.isolate.child.pytest_session" in sys.modules
        @pytest.mark.parametrize("pid", [os.getpid(), 1] if in_child else [os.getpid()])
        def test_x(pid): pass
        """,
        test_y="""
        import sys
        if "pytest_cudafork.isolate.child.pytest_session" in sys.modules:
            raise RuntimeError("not twice")
        def test_y(): pass
        """,
    )
    result = run_session(pytester)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["*did not find it. It found 2 tests: test_x.py::test_x*", "*RuntimeError: not twice*"]
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_grandchild_that_escapes_from_the_test_reports_nothing(
    pytester: pytest.Pytester, method: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import os
        def test_forks():
            if os.fork() == 0:
                raise RuntimeError("the test must not be reported twice")
            os.wait()
        def test_last(): pass
        """
    )
    result = run_session(pytester)
    result.assert_outcomes(passed=2)
    assert "twice" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("method", METHODS)
def test_a_grandchild_that_escapes_from_the_test_takes_no_output_with_it(
    pytester: pytest.Pytester, method: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import os, sys
        import pytest
        @pytest.fixture
        def forks():
            print("words of the setup")
            escape()
            yield
            print("words of the teardown")
            escape()
        def escape():
            sys.stdout.flush()
            if os.fork() == 0:
                raise RuntimeError
            os.wait()
        def test_forks(forks):
            print("words of the test")
            escape()
        """
    )
    result = run_session(pytester, "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"words of the {part}" for part in ("setup", "test", "teardown")])


@pytest.mark.parametrize("method", METHODS)
def test_half_a_surrogate_pair_in_a_message_costs_no_test_of_a_worker(
    pytester: pytest.Pytester, method: str
) -> None:
    pytest.importorskip("xdist")
    isolate_all(pytester, method)
    pytester.makepyfile(
        r"""
        import pytest, warnings
        def test_message(record_property):
            record_property("name", "\udcfe")
            raise ValueError("words \udcff")
        def test_warning(): warnings.warn("a warning of \udcfd")
        def test_last(): pass
        """
    )
    result = run_session(pytester, "-p", "xdist.plugin", "-n1")
    assert_no_crash(result)
    result.assert_outcomes(passed=2, failed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            r"E * ValueError: words \udcff",
            r"*UserWarning: a warning of \udcfd",
        ]
    )


def test_threads_and_strict_warnings_do_not_break_a_fork(pytester: pytest.Pytester) -> None:
    isolate_all(
        pytester,
        "fork",
        "\nimport threading, time\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n",
    )
    pytester.makepyfile("def test_x(run_forked): assert run_forked(int, '4') == 4")
    run_session(pytester, "-W", "error").assert_outcomes(passed=1)


def test_a_refused_fork_is_an_error_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from pytest_cudafork.isolate import policy
        from pytest_cudafork.isolate.session import run_test
        from pytest_cudafork.isolate.session.children import children_of
        from pytest_cudafork.process.forking.short_stack import perform
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            method = policy.Method("fork", None, "it is poisoned")
            perform(run_test.isolate(item, nextitem, method, children_of(item.config)))
            return True
        """
    )
    pytester.makepyfile("def test_x(): pass")
    result = run_session(pytester, "-rA")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["ChildError: it is poisoned"])


def test_a_time_limit_of_another_plugin_fails_the_test_and_not_the_session(
    pytester: pytest.Pytester,
) -> None:
    isolate_all(
        pytester,
        "spawn",
        """
import os, signal
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    if not item.config.pluginmanager.hasplugin("cudafork-only-one"):
        signal.signal(signal.SIGALRM, lambda *rest: pytest.fail("Timeout >2.0s"))
    return (yield)

# The alarm rings when the test is known to run, however long its process took to start.
def pytest_runtest_logreport(report):
    if report.when == "setup" and "test_x" in report.nodeid:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
""",
    )
    pytester.makepyfile(
        """
        import time
        def test_x():
            time.sleep(60)
        def test_y(): pass
        """
    )
    result = run_session(pytester, "-rA")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*killed, because of: Timeout >2.0s*"])
