"""Every module says what it is for, and every public name has a docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.repo.sources import modules

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """The public classes and functions below a node, with their dotted names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition) and not child.name.startswith("_"):
            yield f"{prefix}{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{child.name}.")


def wrong_first_lines() -> Iterator[str]:
    """Say of which modules the first line is none, or does not say what the module is for."""
    for module in modules():
        first = (ast.get_docstring(module.tree) or "").partition("\n")[0]
        if not first:
            yield f"{module.path} has no docstring"
        elif not first.endswith("."):
            yield f"{module.path}: the first line is no sentence: {first!r}"
        elif len(f'"""{first}') > 100:
            yield f"{module.path}: the first line is too long"
        elif re.match(r"Owns\b|It does not know", first):
            yield f"{module.path}: say what it is for"


def test_a_module_says_what_it_is_for_in_a_sentence_in_plain_english() -> None:
    wrong = list(wrong_first_lines())
    assert not wrong, "\n".join(wrong)


def test_public_names_have_docstrings() -> None:
    wrong = [
        f"{module.path}:{node.lineno} {name} has no docstring"
        for module in modules()
        for name, node in public(module.tree)
        if not ast.get_docstring(node) and not _is_overload_or_setter(node)
    ]
    assert not wrong, "\n".join(wrong)


def _is_overload_or_setter(node: Definition) -> bool:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name == "overload" or name.endswith(".setter") for name in names)
