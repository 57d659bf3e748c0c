"""Variables are read and set by ``settings/environment.py`` alone.

The environment as a whole is another matter: ``process/`` and its users hand it to children.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.repo.sources import PROJECT, Module, modules

HOME = "settings.environment"
READERS = ("get", "pop", "setdefault")


def by_name(module: Module) -> Iterator[str]:
    """Give the places where a module asks for one variable, or sets one."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Subscript) and is_environ(node.value):
            yield f"line {node.lineno}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asked = node.func.attr in READERS and is_environ(node.func.value)
            if asked or ast.unparse(node.func) in ("os.getenv", "os.putenv", "os.unsetenv"):
                yield f"line {node.lineno}"


def is_environ(node: ast.expr) -> bool:
    """Whether an expression is the environment of this process."""
    return ast.unparse(node) == "os.environ"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_the_environment_is_read_in_one_place(module: Module) -> None:
    if module.short == HOME:
        return
    places = list(by_name(module))
    assert not places, f"{module.path.relative_to(PROJECT)}, {', '.join(places)}: use {HOME}"
