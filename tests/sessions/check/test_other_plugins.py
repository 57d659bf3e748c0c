"""Beside plugins that run tests in other processes: pytest-xdist and pytest-forked."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.sessions import (
    assert_no_crash,
    check,
    counts,
    failure,
    line_of,
    module,
    outcomes,
    records,
    run_session,
)

needs_xdist = pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"
)


XDIST = """
def test_clean_before_{n}():
    pass

def test_touch_{n}():
    touch()  # culprit {n}

def test_forks_{n}():
    child()

def test_child_touches_{n}():
    subprocess.run([sys.executable, "poisons.py"])
"""


@needs_xdist
def test_with_xdist_there_is_one_ledger_one_summary_and_the_right_test_fails(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(poisons=module("touch()\nchild(touch)\n"))
    for n in (1, 2):
        pytester.makepyfile(**{f"test_{n}": module(XDIST.format(n=n))})
    args = ("-p", "xdist.plugin", "-n2", "--dist=loadfile", "-rfp", "--cuda-fork-ledger=kept")
    result = run_session(pytester, "--cuda-fork-check", *args)
    assert_no_crash(result)
    text = result.stdout.str()
    result.assert_outcomes(passed=4, failed=4)
    assert text.count("= CUDA and fork =") == 1
    for n in (1, 2):
        for name in (f"test_clean_before_{n}", f"test_touch_{n}"):
            assert f"PASSED test_{n}.py::{name}" in text
        culprit = f"test_{n}.py:{line_of(pytester.path / f'test_{n}.py', f'# culprit {n}')}"
        assert culprit in failure(result, f"test_forks_{n}")
        assert "poisons.py" in failure(result, f"test_child_touches_{n}")
    numbers = counts(result)
    assert numbers["forks guarded"] == 4
    assert numbers["touches"] == numbers["in tests"] == 4
    touches = records(pytester.path / "kept", "touch")
    assert len({touch["owner"] for touch in touches}) == 2


@needs_xdist
def test_with_xdist_a_touch_at_collection_is_nobody_elses_fault(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bad=module("touch()\ndef test_bad(): pass\n"))
    pytester.makepyfile(test_good="def test_good(): pass")
    args = ("-p", "xdist.plugin", "-n2", "-rfpE")
    result = run_session(pytester, "--cuda-fork-check=fork", *args)
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    assert counts(result)["at import or collection"] == 2
    result = run_session(pytester, "--cuda-fork-check=touch", *args)
    assert_no_crash(result)
    assert result.ret != 0
    assert "ERROR test_bad.py" in result.stdout.str()
    assert "FAILED test_good.py" not in result.stdout.str()


@needs_xdist
def test_a_wrong_value_with_xdist_is_still_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "-p", "xdist.plugin", "-n2", "--cuda-fork-check=forks")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)


FORKED_SUITE = """
def test_clean():
    pass

def test_touch():
    touch()

def test_clean_after():
    pass
"""


def _forked_works(pytester: pytest.Pytester) -> bool:
    """Whether pytest-forked is here and works with this pytest at all."""
    if importlib.util.find_spec("pytest_forked") is None:
        return False
    pytester.makepyfile(test_probe="def test_probe(): pass")
    arguments = ("-p", "pytest_forked", "--forked", "test_probe.py")
    result = run_session(pytester, *arguments, plugin=())
    (pytester.path / "test_probe.py").unlink()
    return result.ret == 0 and result.parseoutcomes() == {"passed": 1}


def test_with_pytest_forked_tests_pass_and_a_refused_fork_is_that_tests_error(
    pytester: pytest.Pytester,
) -> None:
    if not _forked_works(pytester):
        pytest.skip("pytest-forked is not installed, or broken with this pytest")
    forked = ("-p", "pytest_forked", "--forked")
    pytester.makepyfile(test_suite=module(FORKED_SUITE))
    result = check(pytester, "fork", *forked)
    assert_no_crash(result)
    assert outcomes(result) == dict.fromkeys(outcomes(result), "PASSED")
    assert len(outcomes(result)) == 3
    # Now the pytest process itself is initialized, so no test may be forked.
    pytester.makeconftest(module("touch()  # culprit\n"))
    result = check(pytester, "fork", *forked)
    assert_no_crash(result)
    result.assert_outcomes(errors=3)
    line = line_of(pytester.path / "conftest.py", "# culprit")
    assert f"conftest.py:{line}" in failure(result, "test_clean")
    # And where forks are let through, the child that touches is the one that fails.
    result = check(pytester, "poison", *forked)
    assert_no_crash(result)
    found = outcomes(result)
    assert found["test_clean"] == found["test_clean_after"] == "PASSED"
    assert found["test_touch"] == "FAILED"


@needs_xdist
def test_a_fork_refused_around_a_test_reaches_the_controller_of_xdist(
    pytester: pytest.Pytester,
) -> None:
    # As pytest-forked forks: outside any phase of the test.
    pytester.makeconftest("""
        import os
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item):
            os.fork()
        """)
    pytester.makepyfile(module("touch()\n\n@pytest.mark.usefixtures()\ndef test_a():\n    pass\n"))
    result = run_session(pytester, "-p", "xdist.plugin", "-n1", "--cuda-fork-check")
    assert_no_crash(result)
    result.assert_outcomes(errors=1)
    assert counts(result)["forks guarded"] == 1
