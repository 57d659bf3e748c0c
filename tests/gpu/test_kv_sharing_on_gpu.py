"""Engines that share KV blocks on a GPU: the same tokens, and the script of the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engines need it")
pytest.importorskip("msgspec", reason="the engines need it")

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "demo" / "kv_sharing.py"
TIME_LIMIT = 600


def run_demo(method: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), f"--start-method={method}"],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )


def test_as_reported_it_fails() -> None:
    done = run_demo("fork")
    assert done.returncode == 1
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stderr
    assert "the kv_producer's process ended with 1 and gave no answer" in done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_repaired_it_works(method: str) -> None:
    done = run_demo(method)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kv_consumer"]["fetched"] >= 300
    assert told["kv_consumer"]["text"] == told["kv_producer"]["text"]


@pytest.mark.parametrize("mode", ["NONE", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("speculative", [None, {"method": "eagle", "num_speculative_tokens": 3}])
def test_tokens_are_the_same_with_and_without(mode: str, speculative: Any) -> None:
    """In float32, where rounding changes no token."""
    from sample_engine import LLM, SamplingParams
    from tests.engine.support.kv_transfer import shared_memory

    prompt = "\n".join(f"def area_{sides}(length):" for sides in range(3, 12))
    params = SamplingParams(max_tokens=24)
    settings: dict[str, Any] = {
        "device": "cuda",
        "dtype": "float32",
        "num_blocks": 200,
        "worker_method": "spawn",
        "cudagraph_mode": mode,
        "cudagraph_capture_sizes": (1, 2, 4, 8),
        "speculative_config": speculative,
    }
    with LLM(**settings) as alone:
        (expected,) = alone.generate([prompt], params)
    with shared_memory() as folder:
        settings["kv_transfer_config"] = {"kv_connector_extra_config": {"directory": folder}}
        with LLM(**settings) as one, LLM(**settings) as two:
            assert one.generate([prompt], params)[0].token_ids == expected.token_ids
            assert two.generate([prompt], params)[0].token_ids == expected.token_ids
            assert two.metrics()["external_cached_tokens"] > 0
