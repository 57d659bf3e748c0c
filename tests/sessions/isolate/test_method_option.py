"""Tests of isolation when something goes wrong: the session goes on and every test is reported."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.check.start_method import ProcessState
from pytest_cudafork.isolate.policy import IsolationConfig, Method, choose, instead_of_fork_server
from pytest_cudafork.settings.marker_values import MARKER_METHODS
from pytest_cudafork.settings.markers import Marks
from tests.support.isolation import METHODS as REAL_METHODS
from tests.support.isolation import isolate_all, with_cores
from tests.support.sessions import run_session


def test_the_debugger_turns_isolation_off(pytester: pytest.Pytester) -> None:
    isolate_all(pytester, "spawn")
    pytester.makepyfile(
        "def test_x(pytestconfig):\n"
        "    assert not pytestconfig.pluginmanager.hasplugin('cudafork-work')"
    )
    run_session(pytester, "--pdb").assert_outcomes(passed=1)
    run_session(pytester).assert_outcomes(failed=1)


MARKS = st.builds(
    Marks,
    spawn_only=st.booleans(),
    isolated=st.booleans(),
    method=st.sampled_from(MARKER_METHODS),
    timeout=st.none() | st.floats(0.1, 1e6),
    scope=st.sampled_from(["test", "module"]),
)


CONFIGS = st.builds(
    IsolationConfig,
    every_test=st.sampled_from([None, "none", *MARKER_METHODS]),
    timeout=st.none() | st.just(600.0),
    debugger=st.booleans(),
    inside=st.booleans(),
)


STATES = st.builds(
    ProcessState,
    cuda=st.sampled_from(["clean", "initialized", "poisoned", "not observable"]),
    threads=st.integers(1, 9),
)


@given(MARKS, CONFIGS, STATES)
def test_no_choice_is_unsafe(marks: Marks, config: IsolationConfig, state: ProcessState) -> None:
    method = choose(marks, config, lambda: state)
    if config.inside or config.debugger or config.every_test == "none":
        assert method is None
        return
    if marks.spawn_only:
        assert method is not None
        assert method.name == "spawn"
    if method is None:
        assert not marks.isolated
        assert config.every_test is None
        return
    assert method.name in REAL_METHODS
    if method.name == "fork" and state.cuda in ("initialized", "poisoned"):
        assert method.refusal
    if marks.isolated and marks.method != "auto" and not marks.spawn_only:
        assert method.name == marks.method
    if method.why:
        assert method.name == "forkserver"
    assert instead_of_fork_server(method, "a reason") == Method(
        "spawn", method.timeout, method.refusal, "not forkserver: a reason"
    )


@pytest.mark.parametrize("method", REAL_METHODS)
def test_every_test_has_a_process_of_its_own(pytester: pytest.Pytester, method: str) -> None:
    pytester.makepyfile(
        """
        import os, pytest
        @pytest.mark.parametrize("i", range(3))
        def test_x(i):
            with open("pids", "a") as file: file.write(f"{os.getpid()}\\n")
        @pytest.mark.spawn_only
        def test_spawned(): pass
        """
    )
    result = run_session(pytester, f"--cuda-fork-isolate={method}", "-v")
    result.assert_outcomes(passed=4)
    assert len(set((pytester.path / "pids").read_text().split())) == 3
    result.stdout.fnmatch_lines([f"*test_x?2? PASSED ({method})*", "*test_spawned PASSED (spawn)*"])
    # the lines that programs read are as ever
    assert (
        f"PASSED ({method})"
        not in run_session(
            pytester, f"--cuda-fork-isolate={method}", "-rA", "-k", "test_x"
        ).stdout.str()
    )


def test_none_switches_markers_off_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import os, pytest
        @pytest.mark.cuda_isolated
        def test_x(): assert os.getppid() == {os.getpid()}
        @pytest.mark.spawn_only
        def test_y(): assert os.getppid() == {os.getpid()}
        """
    )
    run_session(pytester, "--cuda-fork-isolate=none").assert_outcomes(passed=2)
    run_session(pytester).assert_outcomes(failed=2)


@pytest.mark.parametrize("value", ["", "thread", "Fork", "0"])
def test_an_unknown_method_is_a_usage_error(pytester: pytest.Pytester, value: str) -> None:
    pytester.makepyfile("def test_x(): pass")
    result = run_session(pytester, f"--cuda-fork-isolate={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--cuda-fork-isolate: * is not a method: use none, fork, forkserver, spawn, auto*"]
    )


def test_contradicting_markers_fail_that_test_and_no_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.spawn_only
        class TestIt:
            @pytest.mark.cuda_isolated(method="fork")
            def test_both(self): pass
            def test_fine(self): pass
        @pytest.mark.cuda_isolated(method="fork")
        class TestOther:
            @pytest.mark.spawn_only
            def test_closest_wins(self): pass
        @pytest.mark.cuda_isolated(scope="session")
        def test_no_such_scope(): pass
        @pytest.mark.cuda_isolated(timeout=-1)
        def test_no_such_limit(): pass
        """
    )
    result = run_session(pytester, "-v")
    result.assert_outcomes(passed=2, errors=3)
    result.stdout.fnmatch_lines_random(
        [
            "*method='fork'* contradicts @pytest.mark.spawn_only*",
            "*test_closest_wins PASSED (spawn)*",
            "*scope='session'): scope is one of test, class, module*",
            "*timeout=-1): timeout is a number of seconds above 0*",
        ]
    )


def test_auto_forks_a_clean_process_and_uses_the_server_otherwise(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_plain="def test_x(): pass")
    result = run_session(pytester, "--cuda-fork-isolate=auto", "-v")
    result.stdout.fnmatch_lines(["*test_x PASSED (fork)*"])
    pytester.makepyfile(
        test_plain="""
        import sys, threading, time
        if "pytest_cudafork.isolate.child.server_session" not in sys.modules:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        def test_x(): pass
        """
    )
    result = run_session(pytester, "--cuda-fork-isolate=auto", "-vv")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*test_x PASSED (forkserver: not fork: 2 threads in the pytest process)*"]
    )


def test_interpreters_are_started_ahead_and_each_used_once(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(with_cores(3))
    pytester.makepyfile(
        """
        import os, time, pytest
        from pathlib import Path

        Path(f"imported-{os.getpid()}").touch()

        @pytest.mark.parametrize("i", range(4))
        def test_x(i):
            with open("pids", "a") as file:
                file.write(f"{os.getpid()}\\n")
            # one import is the parent's; the next test's interpreter comes before its turn
            deadline = time.monotonic() + 120
            while i < 3 and len(list(Path().glob("imported-*"))) < i + 3:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        """
    )
    run_session(pytester, "--cuda-fork-isolate=spawn").assert_outcomes(passed=4)
    pids = (pytester.path / "pids").read_text().split()
    assert len(set(pids)) == 4
