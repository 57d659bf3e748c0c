"""Variables are read and set by ``settings/environment.py`` alone.

The environment as a whole is another matter: ``process/`` and its users hand it to children.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

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


def test_the_environment_is_read_in_one_place() -> None:
    places = [
        f"{module.path.relative_to(PROJECT)}, {place}: use {HOME}"
        for module in modules()
        if module.short != HOME
        for place in by_name(module)
    ]
    assert not places, "\n".join(places)
