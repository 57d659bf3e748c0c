"""A package to patch, and the patches of this process as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cudafork.patch.applying import inherited

SOURCE = """
CONFIG = {"a": 1}
LAYERS = [1, 2]

def answer():
    return "real"

class Engine:
    def step(self):
        return "real step"

    @staticmethod
    def static():
        return "real static"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a package with a module ``work``, which nobody has imported."""
    folder = tmp_path / "patched_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("ROOT = 1\n")
    (folder / "work.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield "patched_package"
    sys.meta_path[:] = finders
    for name in [one for one in sys.modules if one.partition(".")[0] == "patched_package"]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _nothing_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inherited, "applied", {})
