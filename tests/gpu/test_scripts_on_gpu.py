"""The script of the report on a real GPU: it fails as reported, is named, and works with spawn."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cudafork import CudaForkError, PoisonedTouchError, isolated_env, run_script
from pytest_cudafork.check.watch import Watch
from pytest_cudafork.observe.handed_on import WatchSettings

POST = Path(__file__).resolve().parents[2] / "demo" / "service" / "post.py"
NEEDED = [name for name in ("torch", "msgspec", "tqdm") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(NEEDED), reason=f"needs {', '.join(NEEDED)}"),
]
TIME_LIMIT = 300


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_nobody_watches_and_it_fails_as_reported(method: str) -> None:
    """From a process that has not touched CUDA: what the server did is not what it fails of."""
    done = subprocess.run(
        [sys.executable, str(POST), f"--start-method={method}"],
        env=isolated_env(method=method),
        input="def f(",
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    if method == "fork":
        assert done.returncode == 1
        assert "Cannot re-initialize CUDA in forked subprocess" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert sorted(json.loads(done.stdout)) == ["punctuated", "summary"]


def test_the_fork_is_refused_with_both_lines_and_spawn_works() -> None:
    with pytest.raises(CudaForkError, match=r"fork refused at .*post\.py:\d+: .*post\.py:\d+"):
        run_script(POST, "--start-method=fork", stdin="def f(", timeout=TIME_LIMIT)
    good = run_script(POST, "--start-method=spawn", stdin="def f(", timeout=TIME_LIMIT).check()
    assert len({touch.pid for touch in good.touches}) == 2


def test_at_level_poison_the_child_is_named(tmp_path: Path) -> None:
    watch = Watch(WatchSettings(str(tmp_path / "ledger"), "real", "poison"), str(os.getpid()))
    watch.observer.ledger.create()
    watch.begin()
    try:
        with pytest.raises(PoisonedTouchError, match="a forked child touched CUDA"):
            run_script(POST, "--start-method=fork", stdin="def f(", timeout=TIME_LIMIT)
    finally:
        watch.end()
