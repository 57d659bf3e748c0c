"""What runs beside a test has the standard library from ``compat/unpatched.py``."""

from __future__ import annotations

import ast

import pytest

from pytest_cudafork.compat.unpatched import OFFERED
from tests.repo.sources import Module, folder_of, modules

BESIDE_A_TEST = ("process", "isolate", "call", "observe", "check", "patch")
ALL = [module for module in modules() if folder_of(module).partition("/")[0] in BESIDE_A_TEST]


@pytest.mark.parametrize("module", ALL, ids=lambda module: module.short)
def test_nothing_that_a_test_may_replace_is_looked_up_when_it_is_needed(module: Module) -> None:
    wrong = [
        f"line {node.lineno}: {ast.unparse(node)}, not from compat.unpatched"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import) and any(alias.name in OFFERED for alias in node.names)
    ]
    wrong += [
        f"line {node.lineno}: open, not io.open of compat.unpatched"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    ]
    assert not wrong, f"{module.short}: {'; '.join(wrong)}"


CLOCKED = [
    module
    for module in modules()
    if folder_of(module).partition("/")[0] in (*BESIDE_A_TEST, "gpus")
]


@pytest.mark.parametrize("module", CLOCKED, ids=lambda module: module.short)
def test_no_limit_is_counted_by_a_clock_that_a_test_may_stop(module: Module) -> None:
    """What stops the time replaces a name that was imported from ``time``, too."""
    wrong = [
        f"line {node.lineno}: {ast.unparse(node)}, not from compat.unpatched"
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "time")
    ]
    assert not wrong, f"{module.short}: {'; '.join(wrong)}"
