"""Hooks around the phases of tests do not show in the tracebacks of what fails within them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.sources import modules

PHASES = (
    "pytest_runtest_setup",
    "pytest_runtest_call",
    "pytest_runtest_teardown",
    "pytest_pyfunc_call",
    "pytest_fixture_setup",
)


def wrappers() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the hooks of the package that run the phase of a test within them."""
    for module in modules():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.FunctionDef) or node.name not in PHASES:
                continue
            if any("wrapper=True" in ast.unparse(one) for one in node.decorator_list):
                yield f"{module.short}:{node.lineno} {node.name}", node


def test_each_wrapper_of_a_phase_is_hidden_from_tracebacks() -> None:
    found = dict(wrappers())
    assert len(found) > 10
    shown = [
        name for name, node in found.items() if "__tracebackhide__ = True" not in ast.unparse(node)
    ]
    assert not shown, "add __tracebackhide__ = True"
