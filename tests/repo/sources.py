"""Reads the project's own sources: its modules, who imports whom, which files git tracks."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = "pytest_cudafork"
DOCS = PROJECT / "docs"

# Modules at the top of the package that everything below may import.
STANDING_ALONE = ("errors", "counted", "distributions", "_version", "without_torch")


@dataclass(frozen=True)
class Module:
    """One module of the package."""

    name: str
    path: Path

    @functools.cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def short(self) -> str:
        """The name below the package; "" for the package itself."""
        return self.name.removeprefix(PACKAGE).removeprefix(".")


@dataclass(frozen=True)
class Import:
    """One import statement; ``late`` inside a function, ``typing`` for the type checker alone."""

    target: str
    line: int
    late: bool
    typing: bool


@functools.cache
def modules() -> tuple[Module, ...]:
    """Return all modules of the package, ``_startup`` (no package, found by path) left out."""
    found = []
    for path in sorted((PROJECT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(PROJECT).with_suffix("").parts
        if "_startup" in parts:
            continue
        found.append(Module(".".join(parts).removesuffix(".__init__"), path))
    return tuple(found)


def folder_of(module: Module) -> str:
    """Return the folder of a module below the package, "" for its top.

    A module at the top that others rest on (``errors``) counts as a folder of its own.
    """
    names = module.path.relative_to(PROJECT / PACKAGE).parts[:-1]
    if not names and module.short in STANDING_ALONE:
        return module.short
    return "/".join(names)


@functools.cache
def imports_of(module: Module) -> tuple[Import, ...]:
    """Return what a module imports; modules of the package by the name of the submodule."""
    names = {other.name for other in modules()}
    return tuple(
        Import(target, line, late, typing)
        for node, late, typing in _statements(module.tree, late=False, typing=False)
        for target, line in _targets(node, names)
    )


def _statements(
    node: ast.AST, *, late: bool, typing: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late, typing
        elif not isinstance(child, ast.expr):  # which holds no statement
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            checked = isinstance(child, ast.If) and _is_name(child.test, "TYPE_CHECKING")
            yield from _statements(child, late=late or inside, typing=typing or checked)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _targets(node: ast.Import | ast.ImportFrom, names: set[str]) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno) for alias in node.names)
        return
    assert node.level == 0, f"line {node.lineno}: a relative import; this project has none"
    for alias in node.names:
        full = f"{node.module}.{alias.name}"
        yield (full if full in names else str(node.module)), node.lineno


def tracked_files() -> list[Path]:
    """Return the files that git tracks; skips the test where this is no git checkout."""
    if shutil.which("git") is None or not (PROJECT / ".git").exists():
        pytest.skip("no git checkout: which files belong to the project is not known")
    command = ["git", "-C", str(PROJECT), "ls-files", "-z", "--cached", "--others"]
    done = subprocess.run(
        [*command, "--exclude-standard"], stdout=subprocess.PIPE, check=False, text=True
    )
    if done.returncode != 0:
        pytest.skip("git does not answer: which files belong to the project is not known")
    paths = (PROJECT / name for name in done.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]
