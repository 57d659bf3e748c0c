"""Graph tests in a session whose Python has no torch."""

from __future__ import annotations

import pytest

from tests.support.sessions import assert_no_crash, run_session
from tests.support.torch import HIDES_TORCH

HOW = '*torch, which is not installed: pip install "pytest-cudafork[[]torch]"'


@pytest.fixture
def hidden(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makepyfile(hide=HIDES_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    return pytester


def test_each_graph_test_ends_in_one_sentence(hidden: pytest.Pytester) -> None:
    hidden.makepyfile(
        test_fixtures="""
        import pytest

        def test_backend(graph_backend): ...
        def test_pair(capture_pair): ...

        @pytest.mark.graph_capture(backends=["software"])
        def test_marked(graph_backend): ...
        """,
        test_imports="from pytest_cudafork import assert_replay_equals_eager",
    )
    result = run_session(hidden, "-p", "hide", "--continue-on-collection-errors")
    assert_no_crash(result)
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(
        [
            "graphs: none (torch is not installed)",
            f"E*ModuleNotFoundError: pytest_cudafork.assert_replay_equals_eager needs {HOW}",
            f"the fixtures graph_backend and capture_pair need {HOW}",
        ]
    )
    result.stdout.no_fnmatch_line("*No module named 'torch'*")
    result.stdout.no_fnmatch_line("*pytest_cudafork/*.py*")


def test_no_option_is_advised_that_cannot_help(hidden: pytest.Pytester) -> None:
    hidden.makepyfile("def test_it(): ...")
    result = run_session(hidden, "-p", "hide", "--cuda-fork-captures=check")
    assert_no_crash(result)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["torch is not installed, so there is nothing to look at"])
    result.stdout.no_fnmatch_line("*--cuda-fork-graphs=software*")
