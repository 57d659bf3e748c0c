"""The bug report's script with each speculator: it crashes, is caught, and is repaired.

The scripts of a level run in one session, one after the other: all of them find a process that has
asked for a GPU, as the first line of the script does it again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.sessions import failure, outcomes, run_session

TIME_LIMIT = 300  # seconds; engine cores are started, which import torch again

Session = Callable[[str], pytest.RunResult]

SEED = Path(__file__).parents[1] / "seed"
PROJECT = SEED.parents[2]

# The models are small: threads would only wait for each other, in the session and in the cores.
ONE_THREAD = """
import os
import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
"""

SCRIPTS = {
    "poison": """
from seed_script import main

def test_ngram():
    main("probing_backend", "ngram")

def test_eagle():
    main("probing_backend", "eagle")

def test_lazy():
    main("lazy_backend", "eagle")
""",
    "fork": """
import pytest
from seed_script import main

def test_forked():
    main("probing_backend", "ngram")

@pytest.mark.parametrize(
    ("speculator", "environment"), [("ngram", ""), ("eagle", "spawn")], ids=["asked", "set"]
)
def test_spawned(monkeypatch, speculator, environment):
    monkeypatch.setenv("SAMPLE_ENGINE_WORKER_METHOD", environment)
    info = main("probing_backend", speculator, asks_torch=False)
    assert info["worker_method"] == "spawn"
""",
}


@pytest.fixture(scope="module")
def finished() -> dict[str, pytest.RunResult]:
    """The sessions that have run, by level."""
    return {}


@pytest.fixture
def session(pytester: pytest.Pytester, finished: dict[str, pytest.RunResult]) -> Session:
    """The session of a level, whose tests find the engine and the backends."""

    def run(level: str) -> pytest.RunResult:
        if level not in finished:
            pytester.makepyfile(ONE_THREAD + SCRIPTS[level])
            flags = (f"--cuda-fork-check={level}", "--cuda-fork-device=phantom:sm_90", "-v")
            env = {"PYTHONPATH": f"{PROJECT}:{SEED}"}
            finished[level] = run_session(pytester, *flags, env=env, time_limit=TIME_LIMIT)
        return finished[level]

    return run


@pytest.mark.parametrize("speculator", ["ngram", "eagle"])
def test_the_script_crashes_in_the_core_with_the_reports_error(
    session: Session, speculator: str
) -> None:
    result, test = session("poison"), f"test_{speculator}"
    assert outcomes(result)[test] == "FAILED"
    pytest.LineMatcher(failure(result, test).splitlines()).fnmatch_lines(
        [
            "*RemoteError*",
            "*probing_backend.py*",
            "*Cannot re-initialize CUDA in forked subprocess*",
        ]
    )


def test_the_check_refuses_the_fork_and_names_who_touched(session: Session) -> None:
    result = session("fork")
    assert outcomes(result)["test_forked"] == "FAILED"
    lines = (SEED / "seed_script.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "is_available()" in text)
    pytest.LineMatcher(failure(result, "test_forked").splitlines()).re_match_lines(
        [
            rf"E .*CudaForkError: fork refused at .*seed_script\.py:{line} ",
            r"E +fork refused: this process has initialized CUDA",
            rf"E +.*seed_script\.py:{line}\b.*",
        ]
    )


@pytest.mark.parametrize("how", ["asked", "set"])
def test_with_a_spawned_core_it_passes(session: Session, how: str) -> None:
    assert outcomes(session("fork"))[f"test_spawned[{how}]"] == "PASSED"


def test_with_the_lazy_backend_a_forked_core_passes(session: Session) -> None:
    assert outcomes(session("poison"))["test_lazy"] == "PASSED"
