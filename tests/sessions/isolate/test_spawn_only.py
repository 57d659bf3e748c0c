"""A test that is marked ``spawn_only`` runs in a fresh interpreter, whatever else is asked for."""

from __future__ import annotations

import pytest

from tests.support.sessions import run_session

CONFTEST = """
import os

import pytest

made_in = os.getpid()  # of a forked process it is the number of the one that it was forked from
os.environ.setdefault("SESSION", str(made_in))

@pytest.fixture
def is_fresh():
    return made_in == os.getpid() != int(os.environ["SESSION"])
"""
TESTS = """
import pytest

@pytest.mark.spawn_only
def test_marked(is_fresh): assert is_fresh

@pytest.mark.spawn_only
@pytest.mark.forked
def test_with_the_mark_of_pytest_forked(is_fresh): assert is_fresh

@pytest.mark.spawn_only
class TestMarked:
    def test_in_a_class(self, is_fresh): assert is_fresh

def test_other(is_fresh): pass
"""


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--forked",),
        ("--cuda-fork-isolate=fork",),
        ("--cuda-fork-isolate=forkserver",),
        ("--cuda-fork-isolate=auto", "--cuda-fork-isolate-scope=module"),
        ("--cuda-fork-isolate=fork", "-p", "xdist.plugin", "-n", "1"),
    ],
    ids=" ".join,
)
def test_it_is_never_forked(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    run_session(pytester, *options).assert_outcomes(passed=4)


def test_the_test_can_see_a_fork(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS.replace("@pytest.mark.spawn_only\n", ""))
    run_session(pytester, "--cuda-fork-isolate=fork").assert_outcomes(passed=1, failed=3)
