"""Refused forks in hooks for the session's end fail the session, and their story is told once."""

from __future__ import annotations

import json

import pytest

from pytest_cudafork.report.merge import merge, read_jobs
from tests.support.sessions import check, failure, module, outcomes

HOOKS = {
    "pytest_sessionfinish": "def pytest_sessionfinish():\n    end()\n",
    "the end of a wrapper": (
        "@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "def pytest_sessionfinish():\n    yield\n    end()\n"
    ),
    "pytest_terminal_summary": "def pytest_terminal_summary():\n    end()\n",
    "pytest_unconfigure": "def pytest_unconfigure():\n    end()\n",
}


@pytest.mark.parametrize("place", HOOKS)
def test_a_refusal_that_is_swallowed_in_a_hook_for_the_end_fails_the_session(
    place: str, pytester: pytest.Pytester
) -> None:
    conftest = (
        "def end():\n    touch()\n    try:\n        os.fork()  # refused\n"
        "    except Exception:\n        pass\n"
    )
    pytester.makeconftest(module(conftest + HOOKS[place]))
    pytester.makepyfile("def test_a(): pass")
    result = check(pytester, "fork")
    assert outcomes(result) == {"test_a": "PASSED"}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str() + result.stderr.str()
    assert text.count("too late to fail a test:") == 1
    assert text.count("> os.fork()  # refused") == 1


def test_a_refusal_that_is_expected_there_fails_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        module(
            "import pytest_cudafork\n"
            "def pytest_unconfigure():\n    touch()\n    try:\n        os.fork()\n"
            "    except pytest_cudafork.CudaForkError:\n        pass\n"
        )
    )
    pytester.makepyfile("def test_a(): pass")
    result = check(pytester, "fork")
    assert result.ret == 0
    assert "too late" not in result.stdout.str() + result.stderr.str()


def test_an_expected_failure_of_another_class_hides_no_refusal(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        module(
            """
def swallow():
    touch()
    try:
        os.fork()
    except Exception:
        pass

@pytest.mark.xfail(raises=AssertionError)
def test_expected_by_its_class():
    swallow()
    assert 0, "as expected"

@pytest.mark.xfail(reason="whatever it is")
def test_expected_whatever_it_is():
    swallow()
    assert 0
"""
        )
    )
    result = check(pytester, "fork")
    assert outcomes(result) == {
        "test_expected_by_its_class": "FAILED",
        "test_expected_whatever_it_is": "XFAIL",
    }
    told = failure(result, "test_expected_by_its_class")
    assert "as expected" in told
    assert "fork refused at" in told


def test_files_and_a_ledger_that_is_joined_know_of_an_error_that_came_last(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        module(
            "def pytest_unconfigure():\n    touch()\n    try:\n        os.fork()\n"
            "    except Exception:\n        pass\n"
        )
    )
    pytester.makepyfile("def test_a(): pass")
    ledger, told = pytester.path / "ledger.jsonl", pytester.path / "told.json"
    files = f"--cuda-fork-ledger={ledger}", f"--cuda-fork-json={told}"
    assert check(pytester, "fork", *files).ret == 1
    document = json.loads(told.read_text(encoding="utf-8"))
    assert (document["good"], document["exit_status"]) == (False, 1)
    assert len(document["check"]["findings"]) == 1
    (job,) = read_jobs([str(ledger)])
    assert job.status == 1
    assert [seen.what.kind for seen in merge([job]).result.new] == ["fork"]
