"""The public names are those listed here: a new one needs an edit here and a line in the docs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import pytest_cudafork
from tests.repo.sources import DOCS

PUBLIC = {
    "CaptureFailedError",
    "CaptureFinding",
    "CapturePairError",
    "ChildCrashed",
    "ChildError",
    "ChildExit",
    "ChildTimeout",
    "CudaForkError",
    "CudaForkWarning",
    "CudaState",
    "CudaTouchError",
    "GpuBusyError",
    "GraphCaptureError",
    "GraphNotJudgedError",
    "GraphUsageError",
    "ImportRecord",
    "ImportVerdict",
    "PoisonedTouchError",
    "ReplayDiffersError",
    "ReplayFailedError",
    "ScriptResult",
    "ScriptTimeout",
    "Touch",
    "Verdict",
    "__version__",
    "assert_replay_equals_eager",
    "audit",
    "cuda_state",
    "isolated",
    "isolated_env",
    "run_script",
    "watch",
}


def test_the_public_names_are_pinned() -> None:
    assert set(pytest_cudafork.__all__) == PUBLIC


WITH_TORCH = {"assert_replay_equals_eager"}


@pytest.mark.slow
def test_every_public_name_can_be_had() -> None:
    torch = importlib.util.find_spec("torch") is not None
    for name in PUBLIC if torch else PUBLIC - WITH_TORCH:
        assert getattr(pytest_cudafork, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(pytest_cudafork, "no_such_name")


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = "import sys, pytest_cudafork; print(*(m for m in sys.modules if m[:6] == 'pytest'))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["pytest_cudafork"]


def test_every_public_exception_and_function_is_in_the_reference() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    missing = {name for name in PUBLIC if f"`{name}" not in pages and f".{name}" not in pages}
    assert not missing - {"__version__"}
