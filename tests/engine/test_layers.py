"""The engine's folders import each other one way, and what lies at the bottom imports nothing.

The rules are read off the folders: a folder counts as one, a module at the top for itself, as the
top holds the whole path of a step, from ``llm`` down to ``config`` and ``errors``.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "sample_engine"
TOP = {"__init__", "__main__", "config", "engine_core", "errors", "llm", "model_runner"} | {
    "sampling",
    "scheduler",
    "speculative_config",
}
MOST_MODULES = 17
MOST_LINES = 450
MOST_LINES_OF_A_FUNCTION = 60
VALUES = (
    "request",
    "sampling_params",
    "scheduled_batch",
    "outputs",
    "vllm_names",
)  # of batch/: every other part may import them

FILES = sorted(ENGINE.rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it and for whatever reason."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "sample_engine":
            yield from (f"sample_engine.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def part_of(name: str) -> str:
    """The folder or the module at the top that a module of the engine belongs to."""
    return name.split(".")[1]


def test_no_two_folders_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        parts = path.relative_to(ENGINE.parent).with_suffix("").parts
        if parts[1] == "__init__":  # the public names, which are imported when they are asked for
            continue
        found = {
            part_of(name) for name in imports_of(path) if name.startswith("sample_engine.")
        } - {parts[1]}
        graph.setdefault(parts[1], set()).update(found)
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"parts of the engine import each other: {' -> '.join(error.args[1])}")


def test_the_top_shows_the_path_of_a_step_and_nothing_else() -> None:
    assert {path.stem for path in ENGINE.glob("*.py")} == TOP


@pytest.mark.parametrize("name", VALUES)
def test_the_values_of_a_step_import_only_the_standard_library_and_each_other(name: str) -> None:
    allowed = {f"sample_engine.batch.{each}" for each in VALUES} | {"sample_engine.errors"}
    for target in imports_of(ENGINE / "batch" / f"{name}.py"):
        known = target in allowed or target.split(".")[0] in {*sys.stdlib_module_names, "torch"}
        assert known, f"batch/{name}.py imports {target}"


def test_a_folder_has_at_most_17_modules() -> None:
    for folder in {path.parent for path in FILES}:
        assert len(list(folder.glob("*.py"))) <= MOST_MODULES, folder


def too_long(path: Path) -> Iterator[str]:
    """Say what of a file is longer than it may be."""
    source = path.read_text(encoding="utf-8")
    if len(source.splitlines()) > MOST_LINES:
        yield f"{path} has {len(source.splitlines())} lines"
    if path.parent.name == "kernels":  # a kernel and its launch take their arguments one a line
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_LINES_OF_A_FUNCTION:
                yield f"{path}:{node.lineno} {node.name}: {lines}"


def test_a_file_can_be_read_in_one_sitting_and_a_function_at_one_glance() -> None:
    wrong = [words for path in FILES for words in too_long(path)]
    assert not wrong, "\n".join(wrong)


def test_a_module_says_what_it_is_for() -> None:
    for path in FILES:
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert words, path
        assert not words.startswith("Owns"), path


def test_an_engine_of_one_process_imports_no_torch_distributed() -> None:
    """One folder does, and whoever needs it imports it where ranks are made."""
    group = "sample_engine.parallel.group"
    for path in FILES:
        distributed = {name for name in imports_of(path) if name.startswith("torch.distributed")}
        assert not distributed or path.parent == ENGINE / "parallel", path
        at_top = ast.Module(ast.parse(path.read_text(encoding="utf-8")).body, [])
        names = [
            node.module
            for node in at_top.body
            if isinstance(node, ast.ImportFrom) and node.module is not None
        ]
        assert group not in names, path
