"""Every failure names the culprit in its first line, and tells it in full once."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.support.sessions import check, failure, line_of, module, run_session

ENGINE = """
class Backend:
    touch()  # culprit
"""

FORTY = """
import engine

@pytest.mark.parametrize("n", range(40))
def test_forks(n):
    os.fork()  # forks
"""


def test_one_culprit_fails_forty_tests_and_is_told_in_full_once(
    pytester: pytest.Pytester,
) -> None:
    engine = pytester.makepyfile(engine=module(ENGINE))
    path = pytester.makepyfile(test_it=module(FORTY))
    # With CI set pytest shows whole messages in its short summary.
    result = check(pytester, "fork", "--junitxml=out.xml", env={"CI": "1"})
    result.assert_outcomes(failed=40)
    culprit = f"engine.py:{line_of(engine, '# culprit')} (class body)"
    forks = f"test_it.py:{line_of(path, '# forks')}"
    first = (
        f"pytest_cudafork.CudaForkError: fork refused at {forks}: CUDA was initialized at {culprit}"
    )
    text = result.stdout.str()
    assert text.count(f"FAILED test_it.py::test_forks[7] - {first}\n") == 1
    assert text.count("what to do:") == 1
    assert text.count("as above: told in full at test_it.py::test_forks[0]") == 39
    result.stdout.fnmatch_lines([f"40 forks refused because of {culprit}"])
    assert text.count("fork refused: this process") == 1
    assert len(result.stdout.lines) < 1100
    cases = list(ElementTree.parse("out.xml").iter("testcase"))
    failures = [failure for case in cases for failure in case.iter("failure")]
    assert [str(failure.get("message")) for failure in failures] == [first] * len(cases)
    assert all(culprit in "".join(case.itertext()) for case in cases)


@pytest.mark.parametrize("how", ["--cuda-fork-isolate=fork", "-n2"])
def test_tests_in_several_processes_tell_their_culprit_once(
    how: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_it=module("@pytest.mark.parametrize('n', range(9))\ndef test_a(n):\n    forks()\n"),
        conftest=module(
            "def pytest_configure():\n    import builtins\n    builtins.forks = forks\n"
        )
        + "\ndef forks():\n    touch()\n    os.fork()\n",
    )
    plugins = ("-p", "xdist.plugin") if how == "-n2" else ()
    result = check(pytester, "fork", *plugins, how)
    result.assert_outcomes(failed=9)
    text = result.stdout.str()
    processes = 2 if how == "-n2" else 1
    assert 1 <= text.count("what to do:") <= processes
    assert text.count("as above: told in full at test_it.py::test_a[") >= 9 - processes


HELPER = """
def probe():
    touch()

@pytest.mark.cuda_isolated(method="fork")
def test_isolated():
    probe()
    os.fork()

def test_touches():
    probe()  # here

def test_forks():
    os.fork()
"""


def test_a_line_that_several_tests_reach_is_told_with_each_ones_own_way(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(test_it=module(HELPER))
    result = check(pytester, "touch")
    result.assert_outcomes(failed=3)
    caller = f"{path.name}:{line_of(path, '# here')} in test_touches"
    for test, told_at in (("test_touches", "test_isolated"), ("test_forks", "test_touches")):
        story = failure(result, test)
        assert f"as above: told in full at {path.name}::{told_at}" in story
        # What was told in full is the touch of another process, with the way of another test.
        assert (caller in story) == (test == "test_touches")
    assert "test_it.py::test_touches (call)" in failure(result, "test_touches")


TOUCHES = """
@pytest.mark.parametrize("n", range(3))
def test_touches(n):
    touch()  # culprit

@pytest.mark.cuda_fork_ok(reason="wrong about it")
def test_child_touches():
    child(touch)  # child
"""


def test_one_line_a_failure_names_the_users_place(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_it=module(TOUCHES))
    result = check(pytester, "touch", "--tb=line")
    result.assert_outcomes(failed=4)
    culprit = f"{path.name}:{line_of(path, '# culprit')}"
    named = (
        f"{path}:{line_of(path, '# culprit')}: pytest_cudafork.CudaTouchError: no touch is allowed"
    )
    lines = result.stdout.str().count(f"{named} here: CUDA was initialized at {culprit} (in ")
    assert lines == 3
    result.stdout.fnmatch_lines(
        [
            "*: pytest_cudafork.PoisonedTouchError: a forked child touched CUDA at "
            f"{path.name}:*: CUDA was initialized at {culprit} (in test_touches), before the fork"
        ]
    )


@pytest.mark.parametrize("level", ["touch", "fork"])
def test_an_error_at_collection_is_told_once(level: str, pytester: pytest.Pytester) -> None:
    engine = pytester.makepyfile(engine=module(ENGINE))
    pytester.makepyfile(test_a=module("import engine\nos.fork()\ndef test_a(): pass\n"))
    pytester.makepyfile(test_b=module("import engine\ntry: os.fork()\nexcept Exception: pass\n"))
    result = check(pytester, level, env={"CI": "1"})
    result.assert_outcomes(errors=2)
    text = result.stdout.str()
    culprit = f"engine.py:{line_of(engine, '# culprit')}"
    assert text.count("what to do:") == 1
    assert f"  {culprit}: class body of Backend, evaluated at import (told above)" in text
    for name in ("test_a", "test_b"):
        error = rf"^ERROR {name}\.py - pytest_cudafork\.Cuda\w+: .*{re.escape(culprit)}.*$"
        assert len(re.findall(error, text, re.MULTILINE)) == 1


def test_touches_in_tests_are_named_by_their_culprits(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_it=module(TOUCHES))
    culprit = f"{path.name}:{line_of(path, '# culprit')}: in test_touches"
    few = run_session(pytester, "--cuda-fork-check", "-k", "touches and not child")
    few.stdout.fnmatch_lines(["touched in tests:", f"  {culprit} (in 3 tests)", "touches: 3 (*"])
    assert "test_touches[0]" not in few.stdout.str()
    many = check(pytester, "fork", "-k", "touches and not child")
    many.stdout.fnmatch_lines([f"  {culprit} (in 3 tests)", "    test_it.py::test_touches?0?"])


def test_a_section_below_a_failed_test_is_not_green(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=module("def test_a():\n    touch()\n"))
    bad = run_session(pytester, "--cuda-fork-check=touch", "--color=yes")
    bad.assert_outcomes(failed=1)
    lines = [line for line in bad.stdout.lines if "CUDA and fork =" in line or "touches: " in line]
    assert len(lines) == 2
    assert all("\x1b[31m" in line for line in lines)
