"""The rehearsal warms a process up and nobody outside of pytest's own plugins hears of it."""

from __future__ import annotations

import pytest

from tests.support.sessions import assert_no_crash, run_session

# Everything of a user's that could notice a test.
CONFTEST = """
import pytest

SEEN = []

def pytest_runtest_protocol(item): SEEN.append(("protocol", item.name))
def pytest_runtest_logstart(nodeid): SEEN.append(("logstart", nodeid))
def pytest_runtest_setup(item): SEEN.append(("setup", item.name))
def pytest_runtest_call(item): SEEN.append(("call", item.name))
def pytest_runtest_teardown(item): SEEN.append(("teardown", item.name))
def pytest_runtest_makereport(item): SEEN.append(("makereport", item.name))
def pytest_runtest_logreport(report): SEEN.append(("logreport", report.nodeid))
def pytest_fixture_setup(fixturedef): SEEN.append(("fixture", fixturedef.argname))

@pytest.fixture(autouse=True, scope="session")
def whole(): SEEN.append(("whole", ""))

@pytest.fixture(autouse=True)
def each(): SEEN.append(("each", ""))
"""

IN_PROCESS = """
import os

def pytest_runtestloop(session):
    from pytest_cudafork.isolate.child.rehearsal import Rehearsal

    os.environ.pop("PYTEST_CURRENT_TEST", None)  # of the session around this one
    before = dict(os.environ)
    {prepare}
    rehearsal = Rehearsal(session)
    rehearsal.run(3)
    assert dict(os.environ) == before
    assert not session.testsfailed
    assert not session._setupstate.stack
    open("seen", "w").write(repr(SEEN))
"""


def test_no_hook_or_fixture_of_the_user_is_called(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST + IN_PROCESS.format(prepare=""))
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester)
    assert_no_crash(result)
    result.assert_outcomes(passed=1)
    assert (pytester.path / "seen").read_text() == "[]"


def test_the_whole_protocol_of_pytest_is_run(pytester: pytest.Pytester) -> None:
    prepare = """
    import _pytest.python
    pyfunc = _pytest.python.pytest_pyfunc_call
    from _pytest.runner import SetupState
    setup = SetupState.setup
    calls = []
    SetupState.setup = lambda self, item: (calls.append(item.name), setup(self, item))[1]
    import atexit
    atexit.register(lambda: open("calls", "w").write(repr(calls)))
"""
    pytester.makeconftest(CONFTEST + IN_PROCESS.format(prepare=prepare))
    pytester.makepyfile("def test_a(): pass")
    run_session(pytester).assert_outcomes(passed=1)
    assert (pytester.path / "calls").read_text().count("cudafork_rehearsal") == 3


def test_where_pytest_is_another_one_it_is_given_up_and_the_tests_run(
    pytester: pytest.Pytester,
) -> None:
    prepare = """
    import _pytest.fixtures
    del _pytest.fixtures.FuncFixtureInfo
"""
    pytester.makeconftest(CONFTEST + IN_PROCESS.format(prepare=prepare))
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester)
    assert_no_crash(result)
    result.assert_outcomes(passed=1)


def test_a_child_of_the_fork_server_sees_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
import sys

def test_a(pytestconfig):
    conftest = next(
        one for name, one in pytestconfig.pluginmanager.list_name_plugin()
        if name.endswith("conftest.py")
    )
    names = {name for _, name in conftest.SEEN}
    assert not any("rehearsal" in name for name in names)
    assert [kind for kind, _ in conftest.SEEN].count("setup") == 1
    assert [kind for kind, _ in conftest.SEEN].count("whole") == 1
"""
    )
    result = run_session(pytester, "--cuda-fork-isolate=forkserver", "--junitxml=junit.xml", "-v")
    assert_no_crash(result)
    result.assert_outcomes(passed=1)
    assert "rehearsal" not in result.stdout.str()
    assert "rehearsal" not in (pytester.path / "junit.xml").read_text()
