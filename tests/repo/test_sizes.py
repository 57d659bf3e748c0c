"""A file can be read in one sitting, a function at one glance."""

from __future__ import annotations

import ast
from collections import Counter

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


def test_a_file_has_at_most_450_lines() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    long = [f"{path} has {n} lines" for path, n in lines.items() if n > MOST_LINES_IN_A_FILE]
    assert not long, "\n".join([*long, "split by subject"])


def test_a_function_has_at_most_60_lines() -> None:
    long = [
        f"{path}:{node.lineno} {node.name}: {lines}"
        for path in FILES
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES_IN_A_FUNCTION
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("top", [PACKAGE])
def test_a_folder_has_at_most_17_modules(top: str) -> None:
    counts = Counter(path.parent for path in (PROJECT / top).rglob("*.py") if path.stem[0] != "_")
    crowded = {str(folder): n for folder, n in counts.items() if n > MOST_MODULES_IN_A_FOLDER}
    assert not crowded
