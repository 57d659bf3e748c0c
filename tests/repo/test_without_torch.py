"""Where torch and what the engine stands on are not installed, the suite is collected all the same.

The environments of tox for each Python have none of them: a test file that needs one skips itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.sources import PROJECT

HIDE = """
import importlib.machinery

HIDDEN = {"msgspec", "numpy", "safetensors", "torch", "tqdm", "transformers", "triton"}
find = importlib.machinery.PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else find(name, path, target)


importlib.machinery.PathFinder.find_spec = find_spec
"""


@pytest.mark.slow
def test_every_file_is_collected_or_skips_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hide.py").write_text(HIDE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-p", "hide", "--collect-only", "-q", "-rs"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "tests"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "torch is not installed" in done.stdout, "it was hidden"
