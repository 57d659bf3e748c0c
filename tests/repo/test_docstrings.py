"""Every module says what it is for, and every public name has a docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repo.sources import Module, modules

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """The public classes and functions below a node, with their dotted names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition) and not child.name.startswith("_"):
            yield f"{prefix}{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{child.name}.")


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_the_module_says_what_it_is_for(module: Module) -> None:
    text = ast.get_docstring(module.tree) or ""
    first, _, _ = text.partition("\n")
    assert first, f"{module.path} has no docstring"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_the_first_line_is_a_sentence_in_plain_english(module: Module) -> None:
    first = (ast.get_docstring(module.tree) or "").partition("\n")[0]
    assert first.endswith("."), f"{module.path}: the first line is no sentence: {first!r}"
    assert len(f'"""{first}') <= 100, f"{module.path}: the first line is too long"
    assert not re.match(r"Owns\b|It does not know", first), f"{module.path}: say what it is for"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_public_names_have_docstrings(module: Module) -> None:
    wrong = [
        f"{name} in line {node.lineno}"
        for name, node in public(module.tree)
        if not ast.get_docstring(node) and not _is_overload_or_setter(node)
    ]
    assert not wrong, f"{module.path} has no docstring for {', '.join(wrong)}"


def _is_overload_or_setter(node: Definition) -> bool:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name == "overload" or name.endswith(".setter") for name in names)
