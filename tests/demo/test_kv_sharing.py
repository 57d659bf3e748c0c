"""Two engines that share KV blocks: as reported the script fails by name, repaired it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sessions import failure, outcomes, run_session

pytest.importorskip("torch", reason="the engines need it")
pytest.importorskip("msgspec", reason="the engines need it")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "demo" / "kv_sharing.py"

# The script of the report, call for call, with another import and another model.
EXAMPLE = """
import torch
from sample_engine import LLM, SamplingParams


def complete(text):
    engine = LLM(model="tiny")
    params = SamplingParams(max_tokens=10)
    found = engine.generate(text, params)
    return found[0].outputs[0]


if __name__ == "__main__":
    import multiprocessing

    multiprocessing.set_start_method("spawn")
    print("completed:", complete("The capital of France is"))
"""

WATCHED = """
import json
import os

import pytest

SCRIPT = {script!r}


def test_as_reported(run_script):
    run_script(SCRIPT, "--start-method=fork")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_repaired(run_script, method):
    result = run_script(SCRIPT, "--start-method=" + method).check()
    assert {{start.method for start in result.starts}} == {{method}}
    assert result.left == ()
    told = json.loads(result.stdout)
    stored, fetched = told["kv_producer"], told["kv_consumer"]
    assert stored["text"] == fetched["text"]
    assert stored["fetched"] == 0
    assert fetched["fetched"] >= 300
    assert fetched["computed"] == stored["computed"] - fetched["fetched"]
    folder = f"/dev/shm/sample_engine-kv-{{os.getuid()}}-{{told['name']}}"
    assert not os.path.exists(folder), "its last user has removed it"


def test_the_example_of_the_report(run_script):
    result = run_script("example.py", env={{"PYTHONPATH": os.environ["PYTHONPATH"]}}).check()
    assert [start.method for start in result.starts] == ["spawn"]
    assert result.stdout.startswith("completed: CompletionOutput(index=0, text=")
"""


@pytest.mark.slow
def test_as_reported_it_fails_by_name_and_repaired_it_works(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(example=EXAMPLE, test_kv_sharing=WATCHED.format(script=str(SCRIPT)))
    result = run_session(
        pytester,
        *("-v", "--cuda-fork-check", "--cuda-fork-device=phantom"),
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        time_limit=600,
    )
    assert outcomes(result) == {
        "test_as_reported": "FAILED",
        "test_repaired[spawn]": "PASSED",
        "test_repaired[forkserver]": "PASSED",
        "test_the_example_of_the_report": "PASSED",
    }
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    asks = next(n for n, line in enumerate(lines, 1) if "torch.cuda.is_available()" in line)
    forks = next(n for n, line in enumerate(lines, 1) if "worker.start()" in line)
    told = failure(result, "test_as_reported")
    assert f"kv_sharing.py:{forks}: CUDA was initialized at" in told
    assert f"kv_sharing.py:{asks}" in told
