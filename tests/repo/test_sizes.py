"""A file can be read in one sitting, a function at one glance."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.repo.sources import PACKAGE, PROJECT

MOST_LINES_IN_A_FILE = 450
MOST_LINES_IN_A_FUNCTION = 60
MOST_MODULES_IN_A_FOLDER = 17

# entry_points.inc is generated: one line for each entry point of the driver.
FILES = sorted(
    path
    for suffix in ("*.py", "*.c", "*.h")
    for path in [*(PROJECT / PACKAGE).rglob(suffix), *(PROJECT / "benchmarks").rglob(suffix)]
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PROJECT)))
def test_a_file_has_at_most_450_lines(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES_IN_A_FILE, f"{path} has {lines} lines: split it by subject"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.suffix == ".py"],
    ids=lambda p: str(p.relative_to(PROJECT)),
)
def test_a_function_has_at_most_60_lines(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MOST_LINES_IN_A_FUNCTION, f"{path}:{node.lineno} {node.name}: {lines}"


@pytest.mark.parametrize("top", [PACKAGE])
def test_a_folder_has_at_most_17_modules(top: str) -> None:
    counts = Counter(path.parent for path in (PROJECT / top).rglob("*.py") if path.stem[0] != "_")
    crowded = {str(folder): n for folder, n in counts.items() if n > MOST_MODULES_IN_A_FOLDER}
    assert not crowded
