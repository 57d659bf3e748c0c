"""Isolated steps of pytest-steps: those of one function share a process, and end with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import needs, same
from tests.support.sessions import run_session

STEPS = """
    import pytest
    from pytest_steps import depends_on, optional_step, test_steps

    @test_steps("one", "two", "three")
    def test_in_a_row():
        x = 1
        yield
        assert x == 1
        yield
        yield

    @test_steps("one", "two", "three")
    def test_fails():
        x = 1
        yield
        assert x == 2
        yield
        yield

    @test_steps("one", "two", "three")
    def test_may_fail():
        yield
        with optional_step("two") as two:
            assert False
        yield two
        yield

    @test_steps("one", "two")
    @pytest.mark.parametrize("n", [1, 2])
    def test_of_numbers(n):
        x = n
        yield
        assert x == 1
        yield

    def first(steps_data):
        steps_data.x = 1

    @depends_on(first)
    def second(steps_data):
        assert steps_data.x == 1

    @test_steps(first, second)
    def test_explicit(test_step, steps_data):
        test_step(steps_data)

    def test_other():
        pass
"""


@pytest.mark.parametrize("scope", ["test", "module"])
def test_a_step_goes_on_with_what_those_before_it_have_left(tmp_path: Path, scope: str) -> None:
    run = f"--cuda-fork-isolate-scope={scope}"
    same(tmp_path, METHODS, ["steps"], {"test_it.py": STEPS}, run)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_whose_process_has_died_before_fails(pytester: pytest.Pytester, method: str) -> None:
    plugin = needs("steps")
    pytester.makepyfile(
        """
        import os
        from pytest_steps import test_steps

        @test_steps("one", "two", "three")
        def test_dies():
            yield
            os._exit(7)
            yield
            yield
        """
    )
    result = run_session(pytester, "-p", plugin, f"--cuda-fork-isolate={method}", "-v")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*test_dies?three* ERROR*", "*the function would begin anew*"])
