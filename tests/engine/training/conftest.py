"""A small library to train on."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a small library: modules of every split, tests, and what is to be left out."""
    from tools.training.corpus import split_of  # there may be no numpy

    root = tmp_path / "library"
    wanted = {"train": 50, "validation": 8, "held_out": 8, "tests": 24}
    for index in itertools.count():
        name = f"package/{'' if index % 3 else 'test/'}module_{index}.py"
        if wanted[split_of(name)] == 0:
            continue
        wanted[split_of(name)] -= 1
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        text = f"def function_{index}(a, b):\n    return a + b * {index}\n\n\n" * 12
        (root / name).write_text(text, encoding="utf-8")
        if not any(wanted.values()):
            break
    for name in ("site-packages/other.py", "encodings/cp1.py", "_sysconfigdata_x.py", "notes.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("left_out = True\n", encoding="utf-8")
    (root / "package" / "latin.py").write_bytes(b"# \xe9t\xe9\n")
    (root / "package" / "empty.py").write_text("\n", encoding="utf-8")
    return root
