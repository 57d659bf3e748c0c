"""The bug report's script with each speculator: it crashes, is caught, and is repaired."""

from __future__ import annotations

from pathlib import Path

import pytest

SEED = Path(__file__).parents[1] / "seed"
PROJECT = SEED.parents[2]
PHANTOM = "--cuda-fork-device=phantom:sm_90"


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder whose tests find the engine and the backends."""
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT}:{SEED}")
    return pytester


def _write(session: pytest.Pytester, call: str) -> None:
    session.makepyfile(f"from seed_script import main\n\ndef test_it():\n    info = {call}\n")


@pytest.mark.parametrize("speculator", ["ngram", "eagle"])
def test_the_script_crashes_in_the_core_with_the_reports_error(
    session: pytest.Pytester, speculator: str
) -> None:
    _write(session, f"main('probing_backend', {speculator!r})")
    result = session.runpytest_subprocess("--cuda-fork-check=poison", PHANTOM)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*RemoteError*",
            "*probing_backend.py*",
            "*Cannot re-initialize CUDA in forked subprocess*",
        ]
    )


def test_the_check_refuses_the_fork_and_names_who_touched(session: pytest.Pytester) -> None:
    _write(session, "main('probing_backend', 'ngram')")
    result = session.runpytest_subprocess("--cuda-fork-check", PHANTOM)
    result.assert_outcomes(failed=1)
    lines = (SEED / "seed_script.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "is_available()" in text)
    result.stdout.re_match_lines(
        [
            r"E .*CudaForkError: fork refused: this process has initialized CUDA",
            rf"E +.*seed_script\.py:{line}\b.*",
        ]
    )


@pytest.mark.parametrize(
    ("speculator", "environment"), [("ngram", ""), ("eagle", "spawn")], ids=["asked", "set"]
)
def test_with_a_spawned_core_it_passes(
    session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, speculator: str, environment: str
) -> None:
    monkeypatch.setenv("SAMPLE_ENGINE_WORKER_METHOD", environment)
    call = f"main('probing_backend', {speculator!r}, asks_torch=False)"
    _write(session, f"{call}\n    assert info['worker_method'] == 'spawn'")
    session.runpytest_subprocess("--cuda-fork-check", PHANTOM).assert_outcomes(passed=1)


def test_with_the_lazy_backend_a_forked_core_passes(session: pytest.Pytester) -> None:
    _write(session, "main('lazy_backend', 'eagle')")
    result = session.runpytest_subprocess("--cuda-fork-check=poison", PHANTOM)
    result.assert_outcomes(passed=1)
