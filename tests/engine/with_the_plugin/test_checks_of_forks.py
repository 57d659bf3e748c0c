"""The engine under the plugin: clean as it is, and caught with the line when a backend is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sessions import run_session

SEED = Path(__file__).parents[1] / "seed"
PROJECT = SEED.parents[2]
TIME_LIMIT = 300  # seconds; engine cores are started, which import torch again
CHECK = ("--cuda-fork-check", "--cuda-fork-device=phantom:sm_90")


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder whose tests find the engine and the two backends."""
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT}:{SEED}")
    return pytester


def test_the_engine_touches_nothing_and_forks_safely(session: pytest.Pytester) -> None:
    session.makepyfile(
        """
        import os

        import pytest
        import torch
        from sample_engine import LLM, SamplingParams

        # the model is small: threads would only wait for each other, here and in the cores
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"

        @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "inproc"])
        def test_it(method, cuda_state):
            with LLM(worker_method=method, device="cpu", num_blocks=40) as llm:
                (output,) = llm.generate("import os", SamplingParams(max_tokens=4))
                assert llm.info()["worker_method"] == method
            assert len(output.token_ids) == 4
            assert cuda_state().safe_to_fork
        """
    )
    result = run_session(session, "--cuda-fork-check=touch", CHECK[1], time_limit=TIME_LIMIT)
    result.assert_outcomes(passed=4)


def test_a_forked_core_after_a_class_body_probe_is_refused_with_its_line(
    session: pytest.Pytester,
) -> None:
    session.makepyfile(
        """
        from engine_with import generate

        def test_it():
            generate("probing_backend", "fork")
        """
    )
    result = run_session(session, *CHECK, time_limit=TIME_LIMIT)
    result.assert_outcomes(failed=1)
    line = _line_of("full_graphs", "probing_backend.py")
    result.stdout.re_match_lines(
        [
            rf"E .*CudaForkError: fork refused at .*probing_backend\.py:{line} \(class body\)",
            r"E +fork refused: this process has initialized CUDA",
            rf"E +.*probing_backend\.py:{line}: class body of ProbingBackend, evaluated at import",
            r"E +.*process\.start\(\)",
        ]
    )


def _line_of(text: str, name: str) -> int:
    lines = (SEED / name).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
